"""How the specifications spell a job, and what they mean by it: one reader for each, one model behind all of them."""

from ..definition import DefinitionError, DefinitionProblem
from .reader import read, read_job, refuse_duplicates

__all__ = ["DefinitionError", "DefinitionProblem", "read", "read_job", "refuse_duplicates"]
