"""Formats of job documents: one reader for each specification, and one definition."""

from .reader import read, read_job, refuse_duplicates, with_calendars

__all__ = ["read", "read_job", "refuse_duplicates", "with_calendars"]
