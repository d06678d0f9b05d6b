"""SQL: the statements of ScratchBird's scheduler about jobs.

text ──grammar──▶ tree ──reader──▶ statements ──definitions──▶ definition of a job ──writer──▶ text
"""

from ..statement_error import StatementError
from .definitions import altered, defined
from .model import (
    AlterJob,
    CancelRun,
    CreateJob,
    DropJob,
    ExecuteJob,
    Select,
    ShowCreateJob,
    ShowJobs,
    Statement,
)
from .reader import read_statements
from .writer import create_statement

__all__ = [
    "AlterJob",
    "CancelRun",
    "CreateJob",
    "DropJob",
    "ExecuteJob",
    "Select",
    "ShowCreateJob",
    "ShowJobs",
    "Statement",
    "StatementError",
    "altered",
    "create_statement",
    "defined",
    "read_statements",
]
