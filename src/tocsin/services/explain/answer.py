"""The decision on an instant as a value; the caller chooses the words."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from ...domain.events import Actor, Message, Recorded

Verdict: TypeAlias = Literal[
    "fired",  # it was due, and became an execution
    "paused",  # the job was paused
    "disabled",  # its definition disables it
    "no-such-local-time",  # the clocks of its zone skipped it that day
    "missed",  # no ticker led when it was due, and the catch-up policy let it pass
    "superseded",  # it was missed, and the schedule in force since then does not name it
    "throttled",  # the job fired too often
    "not-scheduled",  # the schedule does not name it
    "on-demand",  # the job had no schedule
    "undecided",  # it is due, and not decided yet
    "unaccounted",  # it should have been decided, and was not: a broken promise
    "future",  # it will fire unless something changes
    "future-paused",  # it would fire if the job were not paused
    "future-disabled",  # it would fire if the definition did not disable it
    "before-the-job",  # the job did not exist yet
    "after-deletion",  # the job was deleted before
]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which no ticker led.

    It lasts from the last sign of the previous leader to the start of the next leader (None: not yet).
    """

    start: datetime | None
    end: datetime | None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the execution of an instant, up to now.

    `status`: `planned` (it waits for its turn), `pending`, `running`, `completed`, `failed`, `cancelled` or `skipped`.
    """

    execution_id: str
    status: str
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    active_execution_id: str | None = None
    """The execution for which it was skipped."""
    by: Actor | None = None
    reason: str | None = None
    """The actor of its end, and the reason."""
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class BackfilledRun:
    """An execution that a backfill ran for the instant later."""

    backfill: str
    execution_id: str
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision on one instant.

    `local_exists`: false if the requested local time does not exist that day. `repeated`: the clocks showed it before. `before` and
    `after` are the nearest instants that the schedule named. `since`, `by`, `reason`: time, actor and reason of the pause, disabling,
    deletion, edit or creation of the job. `late_by`: seconds from the instant to the decision. `backfills`: the executions of backfills.
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
    backfills: tuple[BackfilledRun, ...] = ()
    facts: tuple[Recorded[Message], ...] = ()
