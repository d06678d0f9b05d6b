"""Notifications: the messages that tell people about a job."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from .text import cut, printable_lines

MAX_REASON: Final = 500
"""Characters of a reason."""
MAX_WHY: Final = 2_000
"""Characters of an answer to why."""
MAX_OTHER_JOBS: Final = 5
"""Names of jobs that a grouped notification lists besides its own."""


class Kind(StrEnum):
    """The kinds of notifications: what happened to the job."""

    FAILED = "failed"
    WORKER_LOST = "worker_lost"
    RECOVERED = "recovered"
    SKIPPED = "skipped"
    MISSED = "missed"
    LATE = "late"
    OVERDUE = "overdue"
    SLOW = "slow"


MEANINGS: Final = {
    Kind.FAILED: "the execution failed, after its last retry",
    Kind.WORKER_LOST: "a task of the execution lost two workers, and goes on",
    Kind.RECOVERED: "the first execution completed after failures",
    Kind.SKIPPED: "the execution was skipped",
    Kind.MISSED: "the instant passed without an execution",
    Kind.LATE: "the execution did not start in time (`late_after`)",
    Kind.OVERDUE: "the execution was not complete in time (`must_complete_by`)",
    Kind.SLOW: "the execution runs longer than expected (`duration_over`)",
}
"""What each kind says, for readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message to one channel."""

    id: str
    """The key by which receivers drop a repeated message: a UUIDv7."""
    channel: str
    job: str
    kind: Kind
    at: datetime
    execution_id: str | None = None
    reason: str = ""
    """One line or a few: the message of the error, or the reason for the skip. Plain text, at most `MAX_REASON` characters."""
    why: str = ""
    """A few lines of plain text, at most `MAX_WHY` characters; empty: the reason says all."""
    url: str | None = None
    """The page of the execution or job in the console; None: the settings name no public URL."""
    others: int = 0
    """The number of further notifications that this message stands for."""
    other_jobs: tuple[str, ...] = ()
    """The names of their first jobs, without that of `job`, at most `MAX_OTHER_JOBS`."""

    @property
    def title(self) -> str:
        """Return one line of plain text: the job, what happened, and how many others."""
        others = f" (and {self.others:,} more)" if self.others else ""
        return f"{self.job} {self.kind}{others}"


def bounded(text: str, limit: int) -> str:
    """Return a text that is safe to show, cut to a number of characters."""
    return cut(printable_lines(text.strip()[: limit + 1]), limit)
