"""Limits and headers that apply to every HTTP request."""
