"""The answer to why a job ran at an instant, as a value."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from ...domain import history
from ...domain.events import Actor, Cancelled, DeadLettered, Message, Planned, Recorded, Requested, Skipped

Verdict: TypeAlias = Literal[
    "fired",  # it was due, and an execution was requested
    "paused",  # the job was paused
    "disabled",  # its definition says that it does not fire
    "no-such-local-time",  # the clocks of its zone skipped it that day
    "missed",  # no ticker led, and the catch-up policy did not catch up
    "superseded",  # it was missed, and the schedule in force since then does not name it, or would not fire
    "throttled",  # the job had too many instants
    "not-scheduled",  # the schedule does not name it
    "on-demand",  # the job had no schedule
    "undecided",  # it has come, and no ticker has decided on it yet
    "unaccounted",  # no decision is recorded although later decisions are: a defect
    "future",  # it will fire if nothing changes
    "future-paused",  # it would, were the job not paused
    "future-disabled",  # it would, did the definition not disable it
    "before-the-job",  # there was no such job yet
    "after-deletion",  # there was no such job any more
]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a leading ticker.

    `start`: the last sign of the leader before. `end`: when the next leader began; None: not yet.
    """

    start: datetime | None
    end: datetime | None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The current state of an instant's execution.

    `status`: `planned` (it waits for its turn), `pending`, `running`, `completed`, `failed`, `cancelled` or `skipped`.
    """

    execution_id: str
    status: str
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    active_execution_id: str | None = None
    """Execution because of which it was skipped."""
    by: Actor | None = None
    reason: str | None = None
    """Reason of the cancellation by `by`, or of the skip."""
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision on one instant.

    `local_exists`: false if the requested local time does not exist that day. `repeated`: the clocks showed it
    before. `before` and `after` are the nearest instants that the schedule named. `since`, `by`, `reason`: time, caller
    and reason of the pause, deletion, edit or registration. `late_by`: seconds from the instant to the decision.
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


def outcome_of(execution_id: str, facts: Sequence[Recorded[Message]]) -> Outcome | None:
    """Fold the facts of an execution and its dead letter; None without facts."""
    record = history.fold({}, facts).get(execution_id)
    if record is None:
        return None
    messages = [recorded.message for recorded in facts]
    newest = [message for message in messages if isinstance(message, Requested)][-1:]
    waits = record.status == "pending" and [type(message) for message in newest] == [Planned]
    skipped = next((message for message in messages if isinstance(message, Skipped)), None)
    cancelled = next((message for message in messages if isinstance(message, Cancelled)), None)
    return Outcome(
        execution_id=execution_id,
        status="planned" if waits else record.status,
        attempts=record.attempt if record.has_started else 0,
        started_at=record.started_at if record.has_started else None,
        ended_at=record.completed_at,
        error=record.error,
        active_execution_id=skipped.active_execution_id if skipped else None,
        by=cancelled.by if cancelled else None,
        reason=cancelled.reason if cancelled else skipped.reason if skipped else None,
        dead_lettered=any(isinstance(message, DeadLettered) for message in messages),
    )
