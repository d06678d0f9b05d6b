"""The exit codes, and the errors that commands raise."""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Final

from ...domain.errors import TocsinError
from .usage_codes import USAGE_CODES

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Exit(IntEnum):
    """The exit codes of the program, which scripts may rely on."""

    OK = 0
    NO = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 5
    UNFORESEEN = 6


MEANINGS: Final = {
    Exit.OK: "success, or the answer is yes",
    Exit.NO: "the answer is no: differences or violations exist, or the user declined",
    Exit.USAGE: "the command, a setting, a file or a definition is invalid",
    Exit.NOT_FOUND: "the job, execution, dead letter or token does not exist",
    Exit.UNREACHABLE: "NATS or the database is unreachable or not initialized",
    Exit.INTERRUPTED: "interrupted before the command finished",
    Exit.UNFORESEEN: "unexpected error; --log-level debug shows the traceback",
}

OUTPUT_CLOSED: Final = "output-closed"
"""The code of an error that only JSON reports."""
HELP: Final = "Exit codes: " + " · ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items())


class UsageError(TocsinError):
    """A command cannot do its work. Each kind of failure has its own `code`."""

    code = "usage"
    codes: ClassVar[Mapping[str, str]] = USAGE_CODES

    def __init__(self, message: str, exit_code: Exit = Exit.USAGE, *, code: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code


class Interrupted(TocsinError):
    """A signal arrived before the command finished."""

    code = "interrupted"


def no_such_job(job: str, known: list[str]) -> UsageError:
    """Return the error for an unknown job; it suggests the nearest name."""
    if _ID.fullmatch(job):
        return UsageError(
            f"{job} is an execution's id, but this command needs a job's name: run `tocsin executions show {job}`",
            Exit.NOT_FOUND,
            code="job-not-found",
        )
    from ...domain.formats.document import nearest  # noqa: PLC0415 - only this failure needs it

    suggestion = nearest(job, known)
    hint = f", did you mean {suggestion!r}?" if suggestion else ": run `tocsin jobs list` to see all jobs"
    return UsageError(f"job {job!r} does not exist{hint}", Exit.NOT_FOUND, code="job-not-found")
