"""The reason why a job ran at an instant, or did not.

`judge` is pure: the same events give the same answer everywhere. `ExplainReader` reads the events that it needs.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import ConfigDict, Field, InstanceOf

from .. import subjects
from ..archive.stream_reader import decoded
from ..domain import execution, history, ids
from ..domain.definition import EventTrigger, upstream_jobs
from ..domain.events import (
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
from ..domain.hold_up_time import HoldUpCause
from ..domain.ledger import Ledger
from ..domain.replay import INSTANT, Decision, Gap, InForce, Past, Verdict
from ..domain.schedule import Occurrence, Schedule, moved_to
from ..domain.schedule.clock_changes import instants_of, is_repeated, shifted
from ..engine.ledger_reader import LedgerReader
from ..ports import EventLog, StoredLog
from ..ports.queries import require_year
from ..subjects import Stream
from .calculations import Calculator, in_place
from .hold_ups import HoldUp, HoldUpReader
from .jobs import MaySee
from .jobs.dependencies import all_visible, circle_of
from .operations.lookup import ExecutionMatch, read_fan_out
from .past_reader import MARGIN, SeesDefinitions, SeesEvent, read_decisions, read_ignored, read_leaders, read_past


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
    """The decision on an occurrence, with the events that led to it."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)

    job: str
    at: datetime
    timezone: str
    verdict: Verdict
    schedule: str | None = None
    definition: Annotated[int, Field(description="The sequence of the definition in force at that time.")] = 0
    local_exists: Annotated[bool, Field(description="false: the requested local time does not exist on that day.")] = (
        True
    )
    skipped_local: datetime | None = None
    repeated: Annotated[bool, Field(description="The clocks showed the time before.")] = False
    before: Annotated[datetime | None, Field(description="The nearest instant before that the schedule named.")] = None
    after: Annotated[datetime | None, Field(description="The nearest instant after that the schedule named.")] = None
    since: Annotated[
        datetime | None,
        Field(
            description="The time of the pause, disabling, deletion, edit or creation of the job; `by` and `reason` belong to it."
        ),
    ] = None
    by: Actor | None = None
    reason: str | None = None
    count: int = 0
    late_by: Annotated[float, Field(description="Seconds from the occurrence to the decision.")] = 0.0
    exclusion: Annotated[
        str | None, Field(description="The calendar or the blackout of the job that excludes it, in words.")
    ] = None
    moved_to: Annotated[
        datetime | None,
        Field(description="The occurrence to which its time of day moves, because its own day is excluded."),
    ] = None
    caught_up: bool = False
    gap: Annotated[Gap | None, Field(description="A period without a leading ticker.")] = None
    outcome: Outcome | None = None
    execution_id: str | None = None
    backfills: Annotated[
        tuple[BackfilledRun, ...], Field(description="The executions that backfills ran for the occurrence.")
    ] = ()
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
    """Return the decision on an instant; several if a (naive) local time came twice."""
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


MAX_SCANNED: Final = 20_000
"""Executions of a job after an instant that are searched for backfills."""
MAX_IGNORED: Final = 20
"""Events that started nothing and are a part of an answer."""
REFUSED_SINCE: Final = timedelta(days=1)
"""The time before an instant in which the newest refused event is searched."""
TIME_OF_ID: Final = 13
"""Characters of an id that hold its time."""
_DAY: Final = timedelta(days=1)
_WITHOUT_EVENTS: Final[frozenset[Verdict]] = frozenset({"fired", "before-the-job", "after-deletion"})
"""No event explains these verdicts."""
_WITH_GAP: Final[frozenset[Verdict]] = frozenset({"undecided", "missed"})
"""The verdicts that the absence of a leader may explain."""


@dataclass(frozen=True, slots=True)
class ExplainReader:
    """Answers from the log why a job ran at an instant, or did not.

    `sees`, `sees_event` and `may_see` (of a job): the view of the caller; by default everything.
    """

    log: EventLog
    stored: StoredLog
    calculate: Calculator = in_place
    hold_ups: HoldUpReader | None = None
    sees: SeesDefinitions | None = None
    sees_event: SeesEvent | None = None
    may_see: MaySee = all_visible

    async def why(self, job: str, at: datetime | None = None) -> tuple[Answer, ...]:
        """Return the decision on an instant, aware or on the job's wall clock (naive).

        There are two answers if a local time came twice. Without an instant, `default_instant` chooses it.

        Raises:
            InvalidQuery: the instant is before 1970 or after 2999.
            JobNotFound: no event mentions the job.
            ScheduleError: its schedule is no longer valid.
        """
        if at is not None:
            require_year("time", at, at.year)
        known = await read_past(self.log, job)
        newest = self._visible(known)
        if at is None:
            at = await self.calculate(lambda _: default_instant(newest))
        # A naive time differs from the same time in UTC by at most a day.
        begin = at if at.tzinfo is not None else at.replace(tzinfo=newest.now.tzinfo) - _DAY
        end = at if at.tzinfo is not None else begin + 2 * _DAY
        past = self._visible(known.with_decisions(await read_decisions(self.stored, job, begin, end)))
        judged = await self.calculate(lambda _: judge(past, at))
        if any(answer.caught_up or answer.verdict in _WITH_GAP for answer in judged):
            led = replace(past, leadership=await read_leaders(past, self.log, begin))
            judged = await self.calculate(lambda _: judge(led, at))
        answers = [await self._with_outcome(answer) for answer in judged]
        answers = [await self._with_backfills(answer, past.now) for answer in answers]
        return tuple([await self._with_events(answer, past) for answer in answers])

    def _visible(self, past: Past) -> Past:
        return past if self.sees is None else past.without_hidden(self.sees(past.definitions))

    async def _with_events(self, answer: Answer, past: Past) -> Answer:
        """Add the newest events that started nothing, if no run answers."""
        governed = _with_definition(answer, past)
        if answer.verdict in _WITHOUT_EVENTS or not triggers_of(governed):
            return answer
        since = next(regime.registered.time for regime in past.regimes if regime.fact.sequence == answer.definition)
        until = min(answer.at, past.now)
        records = [record for record in await read_ignored(self.log, answer.job) if record.time <= until + MARGIN]
        ignored = await self._seen(record for record in records if record.time >= since)
        refused = await self._newest_refused(answer.job, since, until)
        return replace(governed, facts=(*governed.facts, *ignored[-MAX_IGNORED:], *refused))

    async def _seen(self, records: Iterable[Recorded[Message]]) -> list[Recorded[Message]]:
        return [record for record in records if self.sees_event is None or await self.sees_event(record)]

    async def _newest_refused(self, job: str, since: datetime, until: datetime) -> list[Recorded[Message]]:
        """Return the newest event that the job refused, of the last day and since."""
        newest: list[Recorded[Message]] = []
        async with aclosing(self._scan(subjects.ends(job, "skipped"), max(since, until - REFUSED_SINCE))) as events:
            async for recorded in events:
                if recorded.time > until + MARGIN:
                    break
                fact = recorded.message
                is_refused = isinstance(fact, Skipped) and fact.refusal is not None and fact.trigger == "event"
                if is_refused and recorded.time >= since:
                    newest = await self._seen([recorded]) or newest
        return newest

    async def _scan(
        self, filters: Sequence[str], after: datetime, part: str = ""
    ) -> AsyncGenerator[Recorded[Message], None]:
        """Yield events of the log with a part in their subjects, among about `MAX_SCANNED` messages."""
        upto = (await self.stored.extent(Stream.LOG)).last
        portions, scanned = self.stored.messages(Stream.LOG, *filters, after=after, upto=upto), 0
        async with aclosing(portions):
            async for portion in portions:
                for recorded in unfold(decoded(message) for message in portion if part in message.subject):
                    yield recorded
                scanned += len(portion)
                if scanned > MAX_SCANNED:
                    return

    async def _with_outcome(self, answer: Answer) -> Answer:
        if answer.execution_id is None:
            return answer
        scope = subjects.execution(answer.job, answer.execution_id)
        letter = subjects.dead_letter(answer.job, answer.execution_id)
        facts, letter_facts = [await self.log.load(name) for name in (scope, letter)]
        outcome = outcome_of(answer.execution_id, [*facts, *letter_facts])
        match = ExecutionMatch(answer.job, answer.execution_id, tuple(facts))
        fan_out = await read_fan_out(self.log, match)
        if fan_out is not None:
            outcome = Outcome(answer.execution_id, fan_out.status, shards=fan_out.summary)
        if outcome is not None and self.hold_ups is not None:
            outcome = replace(outcome, held_up_by=await self.hold_ups.of(facts))
        if outcome is not None and outcome.status == "planned" and outcome.waits_for_jobs:
            circle = await circle_of(answer.job, outcome.waits_for_jobs, self._ledgers, self.may_see)
            outcome = replace(outcome, circle=circle)
        return replace(answer, outcome=outcome, facts=(*answer.facts, *facts, *letter_facts))

    async def _ledgers(self, jobs: Sequence[str]) -> list[Ledger]:
        reader = LedgerReader(self.log)
        return [(await reader.load(job))[0] for job in jobs]

    async def _with_backfills(self, answer: Answer, now: datetime) -> Answer:
        if answer.at > now:
            return answer
        # The ids of all executions for an instant begin with its time.
        of_instant = f".{ids.occurrence_id(answer.job, answer.at)[:TIME_OF_ID]}"
        backfills: dict[str, str] = {}
        async with aclosing(self._scan(subjects.openings(answer.job), answer.at, of_instant)) as events:
            async for recorded in events:
                fact = recorded.message
                if isinstance(fact, Requested) and fact.backfill and fact.scheduled_time == answer.at:
                    backfills[fact.execution_id] = fact.backfill
        runs, facts = list[BackfilledRun](), [*answer.facts]
        for execution_id, name in backfills.items():
            of_run = await self.log.load(subjects.execution(answer.job, execution_id))
            runs.append(BackfilledRun(name, execution_id, outcome_of(execution_id, of_run)))
            facts += of_run
        return replace(answer, backfills=tuple(runs), facts=tuple(facts)) if runs else answer


def _with_definition(answer: Answer, past: Past) -> Answer:
    """Add the definition in force, which a later pause or resumption does not repeat."""
    added = [
        recorded
        for recorded in past.definitions
        if recorded.sequence == answer.definition and isinstance(recorded.message, Defined)
        if recorded not in answer.facts
    ]
    return replace(answer, facts=(*added, *answer.facts)) if added else answer
