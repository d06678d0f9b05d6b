"""The errors that commands raise themselves."""

import re
from typing import Final

from ...domain.errors import TocsinError
from .exit_codes import Exit

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class UsageError(TocsinError):
    """A command cannot do what it was called for. Each kind of failure has its own `code`."""

    code = "usage"

    def __init__(self, message: str, exit_code: Exit = Exit.USAGE, *, code: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        if code is not None:
            self.code = code


class Interrupted(TocsinError):
    """A signal arrived before the command finished."""

    code = "interrupted"


def no_such_job(job: str, known: list[str]) -> UsageError:
    """The refusal that names what was probably meant."""
    if _ID.fullmatch(job):
        return UsageError(
            f"{job} is an execution's id, and a job's name is needed: `tocsin executions show {job}` tells of the execution",
            Exit.NOT_FOUND,
            code="job-not-found",
        )
    from ...domain.formats.document import nearest  # noqa: PLC0415 - only this failure needs it

    meant = nearest(job, known)
    hint = f", did you mean {meant!r}?" if meant else "; `tocsin jobs list` shows those that are"
    return UsageError(f"no job is called {job!r}{hint}", Exit.NOT_FOUND, code="job-not-found")
