"""Formatting answers for people and for programs."""
