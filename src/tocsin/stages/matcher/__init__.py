"""Matcher: assigns each task to an agent that has its function and a free slot."""
