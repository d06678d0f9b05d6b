"""The answer to the question why a job ran at an instant, or did not."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pydantic import InstanceOf

from ...domain import execution, history, ids
from ...domain.definition import EventTrigger, upstream_jobs
from ...domain.events import (
    Actor,
    Cancelled,
    DeadLettered,
    Defined,
    Due,
    Message,
    Passed,
    PastHoldUp,
    Planned,
    Recorded,
    Requested,
    Skipped,
    Started,
    unfold,
)
from ...domain.hold_up_time import HoldUpCause
from ...domain.replay import INSTANT, Decision, Gap, InForce, Past, Verdict
from ...domain.schedule import Occurrence, Schedule, moved_to
from ...domain.schedule.clock_changes import instants_of, is_repeated, shifted
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


_SECOND: Final = timedelta(seconds=1)
_SILENT: Final = frozenset({"paused", "disabled"})


def judge(past: Past, moment: datetime) -> tuple[Answer, ...]:
    """Return the decision on an instant; several if a (naive) local time came twice.

    Raises:
        JobNotFound: no event mentions the job.
        ScheduleError: its schedule is no longer valid.
    """
    if moment.tzinfo is not None:
        return (_judged(past, moment),)
    return tuple(
        replace(_judged(past, at, local=None if exists else moment), local_exists=exists)
        for at, exists in _meant(past, moment)
    )


def default_instant(past: Past) -> datetime:
    """Return the instant (UTC) to explain if the user names none.

    It is the latest instant that the schedule named since the job was registered. If a pause, a disabling or a deletion came after it, or the job was
    not due before, it is a later instant, whose answer names that reason: the next occurrence, or just after now.

    Raises:
        JobNotFound: no event mentions the job.
        ScheduleError: its schedule is no longer valid.
    """
    newest, last, soon = past.regimes[-1], past.latest(), past.now + _SECOND
    schedule = newest.schedule
    if schedule is None:
        return soon
    if last is not None and (newest.silence is None or last > past.began(newest).since):
        return last
    return schedule.next_after(soon, anchor=past.anchor(newest, soon)) or soon


def _meant(past: Past, local: datetime) -> list[tuple[datetime, bool]]:
    """Return the instants of a local time, by zone, and whether each exists."""
    reigns = [
        (regime.since, regime.until, regime.definition.timezone)
        for regime in past.regimes
        if regime.definition is not None
    ]
    fates = {
        at: exists
        for since, until, timezone in reigns
        for at, exists in _read(timezone, local)
        if since < at and (until is None or at <= until)
    }
    if not fates:  # before the job existed, or after its deletion
        before = [timezone for since, _, timezone in reigns if since < shifted(timezone, local)]
        fates = dict(_read((before or [reigns[0][2] if reigns else "UTC"])[-1], local))
    return sorted(fates.items())


def _read(timezone: str, local: datetime) -> list[tuple[datetime, bool]]:
    instants = instants_of(timezone, local)
    return [(at, True) for at in instants] or [(shifted(timezone, local), False)]


def _judged(past: Past, at: datetime, *, local: datetime | None = None) -> Answer:
    regime = past.regime_at(at)
    if regime is None:
        first = past.regimes[0]
        timezone = first.definition.timezone if first.definition else "UTC"
        answer = Answer(past.job, at, timezone, "before-the-job", since=first.since, by=first.fact.message.by)
        return replace(answer, facts=(first.fact,))
    schedule = regime.schedule
    if regime.definition is None or schedule is None:
        return _without_schedule(past, regime, at)
    instants = list(_named(schedule, at, past.anchor(regime, at)))
    named = next((instant for instant in instants if instant.skipped_local is None), None)
    left_out = [instant for instant in instants if instant.skipped_local is not None]
    leaves_out = next((instant for instant in left_out if local is None or instant.skipped_local == local), None)
    # A query for a nonexistent local time means that time, even if another occurrence fires at its instant.
    meant = (leaves_out or named) if local is not None else (named or leaves_out)
    shown, origin = meant.at if meant else at, past.anchor(regime, meant.at if meant else at)
    answer = Answer(
        job=past.job,
        at=shown,
        timezone=regime.definition.timezone,
        verdict="not-scheduled" if local is None else "no-such-local-time",
        schedule=regime.definition.schedule,
        definition=regime.sequence,
        skipped_local=meant.skipped_local if meant else local,
        repeated=is_repeated(regime.definition.timezone, at),
        before=schedule.latest_until(shown - INSTANT, after=regime.since, anchor=origin),
        after=schedule.next_after(shown, anchor=origin),
        facts=(regime.fact,),
    )
    if meant is None:
        return answer
    if meant.excluded:
        why = schedule.exclusion(meant.at)
        answer = replace(answer, exclusion=None if why is None else str(why), moved_to=moved_to(schedule, meant.at))
    decision = past.decision(meant)
    answer = replace(answer, verdict=past.verdict(regime, meant, decision))
    return _undecided(past, regime, answer) if decision is None else _decided(past, regime, answer, decision)


def _without_schedule(past: Past, regime: InForce, at: datetime) -> Answer:
    fact = regime.fact
    if regime.definition is not None:
        zone = regime.definition.timezone
        return Answer(past.job, at, zone, "on-demand", definition=regime.sequence, since=regime.since, facts=(fact,))
    earlier = (earlier.definition for earlier in reversed(past.regimes))
    timezone = next((definition.timezone for definition in earlier if definition is not None), "UTC")
    answer = Answer(past.job, at, timezone, "after-deletion", since=regime.since, facts=(fact,))
    return replace(answer, by=fact.message.by, reason=fact.message.reason)


def _named(schedule: Schedule, at: datetime, anchor: datetime) -> Iterator[Occurrence]:
    """Return the named instant, or for whole seconds an instant within the second."""
    until = at if at.microsecond else at + _SECOND - INSTANT
    first: datetime | None = None
    for occurrence in schedule.occurrences(at - INSTANT, until, anchor=anchor):
        first = first or occurrence.at
        if occurrence.at == first and occurrence.at >= at:
            yield occurrence


def _undecided(past: Past, regime: InForce, answer: Answer) -> Answer:
    if answer.at > past.now:
        return answer if answer.verdict == "future-excluded" else _with_blame(answer, past.began(regime))
    if answer.verdict != "undecided":
        return answer
    late = (past.now - answer.at).total_seconds()
    return replace(answer, late_by=late, gap=past.gap_around(answer.at, None))


def _decided(past: Past, regime: InForce, answer: Answer, decision: Recorded[Decision]) -> Answer:
    fact = decision.message
    late = max(0.0, (decision.time - answer.at).total_seconds())
    answer = replace(answer, late_by=late, definition=fact.definition, facts=(*answer.facts, decision))
    if answer.skipped_local is not None:
        return answer
    if isinstance(fact, Due):
        execution_id = ids.occurrence_id(fact.job, fact.scheduled_time)
        answer = replace(answer, caught_up=fact.catch_up, execution_id=execution_id)
    elif isinstance(fact, Passed):
        answer = replace(answer, count=fact.count)
    if answer.verdict in _SILENT:
        return _with_blame(answer, past.began(regime))
    if answer.verdict == "superseded":
        later = (later for later in past.regimes if later.fact.sequence > regime.fact.sequence)
        answer = _with_blame(answer, next(later, regime))
    has_gap = answer.caught_up or answer.verdict in {"missed", "superseded"}
    return replace(answer, gap=past.gap_around(answer.at, decision.time)) if has_gap else answer


def _with_blame(answer: Answer, regime: InForce) -> Answer:
    fact = regime.fact
    facts = answer.facts if fact in answer.facts else (fact, *answer.facts)
    return replace(answer, since=regime.since, by=fact.message.by, reason=fact.message.reason, facts=facts)
