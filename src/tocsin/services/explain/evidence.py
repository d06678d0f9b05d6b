"""The decision on an instant as a value, and the events that it rests on."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Literal, TypeAlias

from pydantic import InstanceOf

from ...domain import execution, history
from ...domain.definition import EventTrigger, JobDefinition, upstream_jobs
from ...domain.events import (
    Actor,
    Cancelled,
    DeadLettered,
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    Message,
    Passed,
    PastHoldUp,
    Paused,
    Planned,
    Recorded,
    Requested,
    Skipped,
    Started,
    unfold,
)
from ...domain.hold_up_time import HoldUpCause
from ...domain.ledger import JobNotFound
from ...domain.log_events import LeaderChange
from ...domain.schedule import Schedule, parse
from ..hold_ups import HoldUp

Verdict: TypeAlias = Literal[
    "fired",  # it was due, and became an execution
    "paused",  # the job was paused
    "disabled",  # its definition disables it
    "no-such-local-time",  # the clocks of its zone skipped it that day
    "missed",  # no ticker led when it was due, and the catch-up policy let it pass
    "superseded",  # it was missed, and the schedule in force since then does not name it
    "poison",  # the decision on it failed, which is a defect of Tocsin
    "excluded",  # a calendar or a blackout of the job excludes it
    "not-scheduled",  # the schedule does not name it
    "on-demand",  # the job had no schedule
    "undecided",  # it is due, and not decided yet
    "unaccounted",  # it should have been decided, and was not: a broken promise
    "future",  # it will fire unless something changes
    "future-paused",  # it would fire if the job were not paused
    "future-excluded",  # a calendar or a blackout of the job excludes it
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """The events of a job, each kind oldest first.

    Attributes:
        job: its name.
        definitions: all events on its definition.
        decisions: the decisions on its time, at least from a while before the instant until after it.
        leadership: the leaders, as far as recorded.
        now: the time up to which all of this is known (UTC).
    """

    job: str
    definitions: Sequence[Recorded[DefinitionFact]]
    decisions: Sequence[Recorded[Due | Passed]]
    leadership: Sequence[LeaderChange]
    now: datetime


@dataclass(frozen=True, slots=True)
class Regime:
    """The definition in force from one event to the next (`until`: None: still in force)."""

    fact: Recorded[DefinitionFact]
    until: datetime | None
    definition: JobDefinition | None
    sequence: int
    anchor: datetime
    """The start of its intervals until the job fires."""
    paused: bool

    @property
    def is_silent(self) -> bool:
        return self.paused or (self.definition is not None and not self.definition.enabled)

    @property
    def schedule(self) -> Schedule | None:
        rule = self.definition
        if rule is None or rule.schedule is None:
            return None
        return parse(rule.schedule, rule.timezone, dst=rule.dst, days=rule.day_rules)


def regimes_of(evidence: Evidence) -> list[Regime]:
    """Return the definitions in force, oldest first.

    Raises:
        JobNotFound: no event mentions the job.
    """
    if not evidence.definitions:
        raise JobNotFound(evidence.job)
    known = {
        recorded.sequence: (recorded.message.anchor or recorded.time, recorded.message.definition)
        for recorded in evidence.definitions
        if isinstance(recorded.message, Defined)
    }
    ends = [*(later.time for _, later in pairwise(evidence.definitions)), None]
    return [_regime(fact, until, known) for fact, until in zip(evidence.definitions, ends, strict=True)]


def registrations(evidence: Evidence) -> list[list[Recorded[DefinitionFact]]]:
    """Return the events of each registration of the name, oldest first: a deletion ends it."""
    parts: list[list[Recorded[DefinitionFact]]] = [[]]
    for recorded in evidence.definitions:
        parts[-1].append(recorded)
        if isinstance(recorded.message, Deleted):
            parts.append([])
    return [part for part in parts if part]


def registration_of(evidence: Evidence, regime: Regime) -> Sequence[Recorded[DefinitionFact]]:
    """Return the events of the registration to which a regime belongs."""
    first = regime.fact.sequence
    return next(part for part in registrations(evidence) if part[0].sequence <= first <= part[-1].sequence)


def since(evidence: Evidence, registration: Sequence[Recorded[DefinitionFact]]) -> Evidence:
    """Return the evidence without the registrations of the name before one."""
    first = registration[0].sequence
    return replace(
        evidence,
        definitions=[recorded for recorded in evidence.definitions if recorded.sequence >= first],
        decisions=[recorded for recorded in evidence.decisions if recorded.sequence >= first],
    )


def hidden_from(evidence: Evidence, seen: Collection[int]) -> frozenset[int]:
    """Return the sequences of earlier registrations that a caller does not see.

    `seen`: the sequences of the definitions that the caller sees. A registration with one of them is seen.
    """
    earlier = [{recorded.sequence for recorded in part} for part in registrations(evidence)[:-1]]
    return frozenset().union(*(part for part in earlier if part.isdisjoint(seen)))


def without(evidence: Evidence, hidden: Collection[int]) -> Evidence:
    """Return the evidence without definitions, and what was decided by them."""
    return replace(
        evidence,
        definitions=[recorded for recorded in evidence.definitions if recorded.sequence not in hidden],
        decisions=[recorded for recorded in evidence.decisions if recorded.message.definition not in hidden],
    )


def _regime(
    fact: Recorded[DefinitionFact], until: datetime | None, known: dict[int, tuple[datetime, JobDefinition]]
) -> Regime:
    match fact.message:
        case Defined() as it:
            return Regime(fact, until, it.definition, fact.sequence, it.anchor or fact.time, it.paused)
        case Deleted():
            return Regime(fact, until, None, 0, fact.time, paused=False)
        case it:
            sequence: int = getattr(it, "definition", 0)
            anchor, definition = known.get(sequence, (fact.time, None))
            return Regime(fact, until, definition, sequence, anchor, isinstance(it, Paused))


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


def last_instant(fact: Due | Passed) -> datetime:
    return fact.scheduled_time if isinstance(fact, Due) else fact.until


def triggers_of(answer: Answer) -> Sequence[EventTrigger]:
    """Return the triggers of the definition in force, if the answer has it."""
    for fact in answer.facts:
        if isinstance(fact.message, Defined) and fact.sequence == answer.definition:
            return fact.message.definition.triggers
    return ()


def gap_around(at: datetime, decided: datetime | None, leadership: Iterable[LeaderChange]) -> Gap | None:
    """Return the gap that contains an instant decided at `decided` (None: not yet).

    None means that a ticker led, or that no event shows a gap.
    """
    for gap in gaps(change for change in leadership if decided is None or change.at <= decided):
        if gap.end is None:
            return gap if decided is None else None
        if (gap.start is None or gap.start < at) and at <= gap.end:
            return gap
    return None


def gaps(leadership: Iterable[LeaderChange]) -> Iterator[Gap]:
    """Yield the time before each leader, and after the last if its end is recorded."""
    sign: datetime | None = None
    holder: str | None = None
    is_led = True
    for change in leadership:
        is_led = change.begins
        if not is_led:
            sign = change.at
            continue
        last_seen = max((at for at in (sign, change.last_sign) if at is not None), default=None)
        yield Gap(last_seen, change.at, holder, change.holder)
        sign, holder = max(change.at, last_seen or change.at), change.holder
    if not is_led:
        yield Gap(sign, None, holder)
