"""Formats of job documents: one reader for each specification, and one definition."""

from ..definition import DefinitionError, DefinitionProblem
from .reader import read, read_job, refuse_duplicates, with_calendars

__all__ = ["DefinitionError", "DefinitionProblem", "read", "read_job", "refuse_duplicates", "with_calendars"]
