"""How the specifications spell a job, and what they mean by it: one reader for each, one model behind all of them."""

from ..definition import DefinitionError, Problem
from .reader import read, read_job, refuse_duplicates

__all__ = ["DefinitionError", "Problem", "read", "read_job", "refuse_duplicates"]
