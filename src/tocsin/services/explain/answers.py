"""The answer to the question why a job ran at an instant, or did not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import InstanceOf

from ...domain import execution, history
from ...domain.definition import EventTrigger, upstream_jobs
from ...domain.events import (
    Actor,
    Cancelled,
    DeadLettered,
    Defined,
    Message,
    PastHoldUp,
    Planned,
    Recorded,
    Requested,
    Skipped,
    Started,
    unfold,
)
from ...domain.hold_up_time import HoldUpCause
from ...domain.replay import Gap, Verdict
from ..hold_ups import HoldUp


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
    held_up_by: tuple[HoldUp, ...] = ()
    """What holds back its tasks that wait for a worker."""
    held_up: tuple[PastHoldUp, ...] = ()
    """What held back its tasks before workers got them: the seconds of all its tasks together, by cause."""
    waits_for_jobs: tuple[str, ...] = ()
    """The jobs for whose runs it waits."""
    circle: str | None = None
    """The jobs that wait for each other, if it waits for any of them: such a wait ends by its timeout only."""
    acknowledgements: str | None = None
    """If it waits for acknowledgements of agents, how many it has, in words."""
    shards: str | None = None
    """If it fanned out, the state of the executions on its shards in words."""
    start_delay: float | None = None
    """The seconds by which the jitter of the job delayed its start; None: none."""
    starts_at: datetime | None = None
    """The time for which its start waits; None: it does not wait for a time."""


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
    `exclusion`: the calendar or the blackout that excludes it, in words; `moved_to`: the instant to which its time moves then.
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
    exclusion: str | None = None
    moved_to: datetime | None = None
    caught_up: bool = False
    gap: Gap | None = None
    outcome: Outcome | None = None
    execution_id: str | None = None
    backfills: tuple[BackfilledRun, ...] = ()
    facts: tuple[InstanceOf[Recorded[Message]], ...] = ()


def outcome_of(execution_id: str, facts: Sequence[Recorded[Message]]) -> Outcome | None:
    """Return the outcome from the events of an execution (oldest first) and its dead letter."""
    record = history.fold({}, facts).get(execution_id)
    if record is None:
        return None
    messages = [recorded.message for recorded in unfold(facts)]
    newest = [message for message in messages if isinstance(message, Requested)][-1:]
    state = execution.fold(facts)
    depends_on = state.request.plan.depends_on if state.is_dependent else ()
    acknowledgements = execution.acknowledgements(state)
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
        waits_for_jobs=upstream_jobs(depends_on),
        acknowledgements=None if acknowledgements is None else str(acknowledgements),
        held_up=_past_hold_ups(messages),
        start_delay=newest[0].plan.start_delay if newest else None,
        starts_at=newest[0].plan.start_at
        if newest and execution.waits_for(state) == "delay" and not record.has_started
        else None,
    )


def _past_hold_ups(messages: Iterable[Message]) -> tuple[PastHoldUp, ...]:
    total: dict[HoldUpCause, float] = {}
    for message in messages:
        for hold_up in message.held_up if isinstance(message, Started) else ():
            total[hold_up.cause] = total.get(hold_up.cause, 0.0) + hold_up.seconds
    return tuple(PastHoldUp(cause=cause, seconds=round(seconds, 3)) for cause, seconds in total.items())


def triggers_of(answer: Answer) -> Sequence[EventTrigger]:
    """Return the triggers of the definition in force, if the answer has it."""
    for fact in answer.facts:
        if isinstance(fact.message, Defined) and fact.sequence == answer.definition:
            return fact.message.definition.triggers
    return ()
