"""What became of an instant, as a value; whoever shows it chooses the words."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from ...domain.events import Actor, Message, Recorded

Verdict: TypeAlias = Literal[
    "fired",  # it was due, and became an execution, whatever that came to
    "paused",  # somebody had paused the job
    "disabled",  # its definition says that it does not fire
    "no-such-local-time",  # the clocks of its zone skipped it that day
    "missed",  # nobody led when it came, and its catch-up policy let it pass
    "superseded",  # it was missed, and the schedule in force since then does not name it, or would not fire
    "throttled",  # the job was out of hand
    "not-scheduled",  # the schedule does not name it
    "on-demand",  # the job had no schedule
    "undecided",  # it has come, and nobody has decided on it yet
    "unaccounted",  # it should have been decided on, and was not: a broken promise
    "future",  # it will fire if nothing changes
    "future-paused",  # it would, were the job not paused
    "future-disabled",  # it would, did the definition not disable it
    "before-the-job",  # there was no such job yet
    "after-deletion",  # there was no such job any more
]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which no ticker led: from the last sign of whoever led before, to when the next one did (None: not yet)."""

    start: datetime | None
    end: datetime | None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the execution of an instant, up to now.

    `status`: `planned` (it waits for its turn), `pending`, `running`, `completed`, `failed`, `cancelled` or `skipped`.
    """

    execution_id: str
    status: str
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    active_execution_id: str | None = None
    """Which execution it was skipped for."""
    by: Actor | None = None
    reason: str | None = None
    """Who ended it, and why."""
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision on one instant.

    `local_exists`: false where the local time that was asked for does not exist that day. `repeated`: the clocks showed it
    before. `before` and `after` are the nearest instants that the schedule named. `since`, `by`, `reason`: who paused,
    disabled, deleted, edited or created the job, when and why. `late_by`: seconds from the instant to the decision.
    """

    job: str
    at: datetime
    timezone: str
    verdict: Verdict
    schedule: str | None = None
    definition: int = 0
    local_exists: bool = True
    skipped_local: datetime | None = None
    repeated: bool = False
    before: datetime | None = None
    after: datetime | None = None
    since: datetime | None = None
    by: Actor | None = None
    reason: str | None = None
    count: int = 0
    late_by: float = 0.0
    caught_up: bool = False
    gap: Gap | None = None
    outcome: Outcome | None = None
    execution_id: str | None = None
    facts: tuple[Recorded[Message], ...] = ()
