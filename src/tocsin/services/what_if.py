"""Answers to the question: what would other definitions or other workers change?

They come from the recorded past, as the ledger and the log have it, or are a forecast.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Final

from .. import subjects
from ..domain import ledger
from ..domain.definition import JobDefinition, is_name
from ..domain.events import AgentGranted, Defined, DefinitionFact, Due, Message, QueuePaused, QueueResumed, Recorded
from ..domain.ledger import PUNCTUALITY, Timetable
from ..domain.namespaces import declared_of
from ..domain.replay import Decision, Gap, Past, gaps
from ..domain.text import counted
from ..domain.what_if import (
    UNLIMITED,
    Arrivals,
    ExecutionsReplay,
    Outcome,
    Pause,
    QueueRules,
    RecordedJob,
    Runs,
    Side,
    Slots,
    TimeReplay,
    WhatIfJob,
    WhatIfReport,
    compare,
    together,
)
from ..ports import EventLog, StoredLog
from ..ports.queries import InvalidQuery, in_utc, require_year
from ..settings import Queue
from ..subjects import TICKER_LEASE, Stream
from .calculations import Calculator, Effort, in_place
from .jobs import Job
from .namespaces import Namespaces
from .past_reader import DECISIONS, DEFINITIONS, SeesEvent, decisions_of, of_kind, read_all, read_portions

LOOKBACK: Final = timedelta(days=1)
"""How long before the window an execution may have begun that was active when it opened."""
FORECAST_LOOKBACK: Final = timedelta(days=7)
"""The time before a forecast in which durations are measured."""
WIDER: Final = timedelta(days=32)
"""The time before the window in which the last instant of a rare schedule is searched first."""
MAX_EVENTS: Final = 300_000
"""Recorded events that are read for a question."""
MAX_LEADERS: Final = 2_000
"""The newest changes of the leading ticker that are regarded."""


@dataclass(slots=True)
class PastReader:
    """Reads the recorded past of jobs from `since` to `until` (UTC).

    `until` of a forecast is now. `log` is for events on definitions. `lookback`: how long before the window executions are read.
    `may_see`: whether the caller may see a definition; None: every definition.
    """

    log: EventLog
    stored: StoredLog
    calculate: Calculator
    since: datetime
    until: datetime
    lookback: timedelta = LOOKBACK
    may_see: SeesEvent | None = None
    _events: int = 0

    async def job(self, name: str) -> RecordedJob:
        """Return the recorded past of a job.

        A job that was not registered, or is hidden from the caller, has none.
        """
        read = await read_all(self.log, *subjects.ledger_subjects(name, *DEFINITIONS), take=self._count)
        definitions = [fact for fact in of_kind(DefinitionFact, read) if fact.time <= self.until]
        runs = Runs(self.since)
        if not definitions or not await self._is_visible(definitions):
            return RecordedJob(Past(name, (), (), (), self.until), runs)
        decisions = await self._decisions(name, needs_firing=any(map(_counts_from_firing, definitions)))
        filters = (*subjects.runs(name), subjects.started(name, subjects.ANY), *subjects.locks(name))
        async with aclosing(self._portions(Stream.LOG, filters, self.since - self.lookback)) as portions:
            async for facts in portions:
                await self.calculate(lambda _, facts=facts: runs.learn(facts))  # type: ignore[misc]
        runs.finish()
        return RecordedJob(Past(name, definitions, decisions, (), self.until), runs)

    async def pauses(self, queue: str) -> list[Pause]:
        """Return the pauses of a queue up to the end of the window, oldest first."""
        pauses: list[Pause] = []
        for fact in await self._ledger_events(subjects.queue(queue)):
            if isinstance(fact.message, QueuePaused):
                pauses.append(Pause(fact.time, None))
            elif isinstance(fact.message, QueueResumed) and pauses:
                pauses[-1] = pauses[-1]._replace(end=fact.time)
        return pauses

    async def has_grants(self) -> bool:
        """Return whether agents of some name may get some functions only."""
        return bool(of_kind(AgentGranted, await self._ledger_events(*subjects.filters_of(AgentGranted))))

    async def absences(self) -> list[Gap]:
        """Return the times of the window in which no ticker led, as far as recorded."""
        leadership = (await self.log.leaders(TICKER_LEASE))[-MAX_LEADERS:]
        self._count(len(leadership))
        return [
            gap
            for gap in gaps(leadership)
            if (gap.end is None or gap.end > self.since)
            and (gap.start is None or gap.end is None or gap.end - gap.start > PUNCTUALITY)
        ]

    async def _is_visible(self, definitions: Sequence[Recorded[DefinitionFact]]) -> bool:
        """Return whether the caller may see the definitions that were in force in the window."""
        if self.may_see is None:
            return True
        defined = of_kind(Defined, definitions)
        earlier = [fact for fact in defined if fact.time <= self.since - self.lookback]
        in_force = [*earlier[-1:], *defined[len(earlier) :]]
        return all([await self.may_see(fact) for fact in in_force])

    async def _decisions(self, name: str, *, needs_firing: bool) -> list[Recorded[Decision]]:
        """Return the decisions of the window, and at least the last decision before it.

        `needs_firing`: at least the last instant before the window that fired.
        """
        decisions: list[Recorded[Decision]] = []
        for after in (self.since - LOOKBACK, self.since - WIDER, 0):
            decisions = decisions_of(
                await self._ledger_events(*subjects.ledger_subjects(name, *DECISIONS), after=after)
            )
            before = (fact.message for fact in decisions if fact.time <= self.since)
            if any(isinstance(fact, Due) or not needs_firing for fact in before):
                break
        return decisions

    async def _ledger_events(self, *filters: str, after: datetime | int = 0) -> list[Recorded[Message]]:
        async with aclosing(self._portions(Stream.LEDGER, filters, after)) as portions:
            return [fact async for portion in portions for fact in portion]

    def _portions(
        self, stream: Stream, filters: Iterable[str], after: datetime | int
    ) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        """Yield the events up to the end of the window."""
        bounds = partial(read_portions, until=self.until, take=self._count, calculate=self.calculate)
        return bounds(self.stored, stream, filters, after=after)

    def _count(self, events: int) -> None:
        self._events += events
        if self._events > MAX_EVENTS:
            reason = (
                f"the jobs have more than {MAX_EVENTS:,} recorded events since then. Choose a later time, or fewer jobs"
            )
            raise InvalidQuery("since", self.since.isoformat(), reason)


def _counts_from_firing(fact: Recorded[DefinitionFact]) -> bool:
    if not isinstance(fact.message, Defined) or fact.message.definition.schedule is None:
        return False
    return ledger.schedule_of(Timetable.of(fact.message.definition)).interval is not None


MAX_INSTANTS: Final = 100_000
"""Decisions on instants of a replay, for all jobs together."""
MAX_TURNS: Final = 20
"""Calculations of a second for a question, where their time is limited."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a question: after `since`, up to `until` (UTC)."""

    since: datetime
    until: datetime
    is_forecast: bool = False


@dataclass(slots=True)
class Replays:
    """The replays of one question; `notes`: sentences on queues, for their jobs."""

    window: Window
    jobs: Sequence[RecordedJob]
    absences: Sequence[Gap]
    calculate: Calculator
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _turns: int = 0
    _arrivals: dict[str, Arrivals] = field(init=False)

    def __post_init__(self) -> None:
        self._arrivals = {job.job: Arrivals(job) for job in self.jobs}

    def recorded(self) -> dict[str, Side]:
        return {
            job.job: Side(
                [decision.message for decision in job.decisions], [*self._arrivals[job.job].recorded_outcomes()]
            )
            for job in self.jobs
        }

    async def play(self, candidates: Mapping[str, JobDefinition], slots: Slots) -> dict[str, Side]:
        """Replay the window with other definitions."""
        since, until = self.window.since, self.window.until
        executions = ExecutionsReplay(since, until, slots)
        decisions: dict[str, list[Decision]] = {}
        for job in self.jobs:
            definition, before = candidates.get(job.job), sum(map(len, decisions.values()))
            times = TimeReplay(job, definition, since, until, self.absences)
            await self._complete(times.advance, lambda times=times, before=before: before + len(times.decided))  # type: ignore[misc]
            await self.calculate(partial(self._arrive, executions, job, times, definition))
            decisions[job.job] = [decided.fact for decided in times.decided]
        await self._complete(executions.advance, lambda: 0)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in decisions}
        for outcome in executions.outcomes:
            outcomes[outcome.job].append(outcome)
        return {name: Side(facts, outcomes[name]) for name, facts in decisions.items()}

    def _arrive(
        self,
        executions: ExecutionsReplay,
        job: RecordedJob,
        times: TimeReplay,
        definition: JobDefinition | None,
        effort: Effort,
    ) -> None:
        arrivals = self._arrivals[job.job]
        executions.add_locks(job)
        executions.carry_over(arrivals.carried_over())
        for arrival in arrivals.of_window(times.decided, definition):
            executions.add(arrival)
            effort.is_spent()  # lets the event loop run meanwhile

    def report(
        self, before: Mapping[str, Side], after: Mapping[str, Side], candidates: Mapping[str, JobDefinition]
    ) -> WhatIfReport:
        reports = [self._compared(job, before[job.job], after[job.job], candidates.get(job.job)) for job in self.jobs]
        window = self.window
        sides = together(before), together(after)
        return WhatIfReport(window.since, window.until, window.is_forecast, *sides, tuple(reports))

    def _compared(self, job: RecordedJob, before: Side, after: Side, definition: JobDefinition | None) -> WhatIfJob:
        usual, rule = self._arrivals[job.job].usual, definition or job.start.definition
        notes = [*_notes(job, definition, after, has_durations=usual.runs > 0)]
        notes += chain.from_iterable(
            self.notes.get(queue, ()) for queue in (sorted(set(rule.step_queues())) if rule else ())
        )
        return compare(job.job, before, after, usual, tried=definition is not None, notes=notes)

    async def _complete(self, advance: Callable[[Callable[[], bool]], bool], instants: Callable[[], int]) -> None:
        """Advance to the end of the window, in turns of limited time."""

        def turn(effort: Effort) -> bool:
            return advance(lambda: effort.is_spent() or instants() > MAX_INSTANTS)

        while not await self.calculate(turn):
            self._turns += 1
            if instants() > MAX_INSTANTS or self._turns >= MAX_TURNS:
                limit = f"more than {MAX_INSTANTS:,} instants" if instants() > MAX_INSTANTS else "too much to calculate"
                reason = f"the window has {limit}. Choose a later time, or fewer jobs"
                raise InvalidQuery("since", self.window.since.isoformat(), reason)


def _notes(job: RecordedJob, definition: JobDefinition | None, after: Side, *, has_durations: bool) -> Iterable[str]:
    if job.start.definition is None and not job.changes:
        yield "The job has no recorded past in the window."
    registered = [fact.message.definition for fact in job.changes if isinstance(fact.message, Defined)]
    edits = sum(other != definition for other in registered)
    if definition is not None and edits:
        yield f"The given definition replaces {counted(edits, 'other definition')} of the window."
    if not has_durations and any(outcome.is_estimated for outcome in after.outcomes):
        yield "No duration is recorded: new executions take no time, so their overlaps and waits are not known."
    rule = definition or job.start.definition
    if rule is not None and (rule.depends_on or rule.acknowledgements is not None):
        yield "Executions that were not recorded wait for no other job and for no acknowledgement."
    if rule is not None and len(rule.steps()) > 1:
        yield "The job has several steps: an execution takes one slot of the queue of its first step while it runs."


MAX_DAYS: Final = 31
MAX_JOBS: Final = 1_000
MAX_SLOTS: Final = 100_000
DEFAULT_WINDOW: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Question:
    """A question: the change to try, and the window.

    Attributes:
        definitions: definitions to try, each in force for the whole window; other jobs keep theirs.
        since: the beginning of the window; None: a week before its end, or of a forecast now.
        until: the end of the window; None: now. A window after now is a forecast.
        capacity: the slots of workers, by queue; the executions of other queues start after the recorded waits.
    """

    definitions: tuple[JobDefinition, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Answers what-if questions from a log. Nothing is changed or stored.

    `queues`: the settings of the queues, with their limits; `requires_grant`: agents without a grant get no tasks.
    """

    log: EventLog
    stored: StoredLog
    calculate: Calculator = in_place
    queues: Mapping[str, Queue] = field(default_factory=dict)
    requires_grant: bool = False

    async def ask(self, question: Question, jobs: Collection[Job], *, may_see: SeesEvent | None = None) -> WhatIfReport:
        """Replay the window of a question.

        `jobs`: the registered jobs that the caller sees; jobs of a queue with a given capacity take part. `may_see`: whether the caller
        may see a definition event; None: every event.

        Raises:
            InvalidQuery: a field of the question is invalid, or the question is too large.
        """
        window = _window(question, await self.log.now())
        candidates = {definition.name: definition for definition in question.definitions}
        names = _names(question, candidates, jobs)
        lookback = FORECAST_LOOKBACK if window.is_forecast else LOOKBACK
        end = window.since if window.is_forecast else window.until
        reader = PastReader(self.log, self.stored, self.calculate, window.since, end, lookback, may_see)
        recorded = [await reader.job(name) for name in names]
        absences = [] if window.is_forecast else await reader.absences()
        limited = _limited(question.capacity, recorded, candidates, is_forecast=window.is_forecast)
        notes = await self._notes(reader, question.capacity, limited)
        replays = Replays(window, recorded, absences, self.calculate, notes)
        if window.is_forecast:
            before = await replays.play({}, await self._slots(reader, {}, _limited({}, recorded, {}, is_forecast=True)))
        else:
            before = await self.calculate(lambda _: replays.recorded())
        after = await replays.play(candidates, await self._slots(reader, question.capacity, limited))
        return await self.calculate(lambda _: replays.report(before, after, candidates))

    async def _slots(self, reader: PastReader, capacity: Mapping[str, int], limited: Mapping[str, int]) -> Slots:
        """Return limited queues with their pauses.

        A limit of a queue counts the tasks of all of its jobs, which take part only if its capacity is given.
        """
        rules = dict[str, QueueRules]()
        for queue, slots in limited.items():
            settings = self.queues.get(queue) if queue in capacity else None
            limits = (None, None) if settings is None else (settings.concurrency, settings.bucket)
            rules[queue] = QueueRules(slots, *limits, await reader.pauses(queue))
        return Slots(rules)

    async def _notes(
        self, reader: PastReader, capacity: Mapping[str, int], limited: Mapping[str, int]
    ) -> Mapping[str, Sequence[str]]:
        """Return the rules of workers that the replay does not regard, in sentences, by queue."""
        declared = {each.name: each.max_running for each in (await Namespaces(self.log).newest()).namespaces}
        has_grants = bool(limited) and (self.requires_grant or await reader.has_grants())
        notes: dict[str, list[str]] = {}
        for queue in limited:
            namespace, settings = declared_of(queue, declared), self.queues.get(queue)
            has_limits = queue not in capacity and settings is not None and (settings.concurrency or settings.rate)
            sentences = {
                f"Which functions an agent may serve is not regarded: each slot of the queue {queue} serves all functions.": has_grants,
                f"The quota `max_running` of the namespace {namespace} is not regarded.": namespace is not None
                and declared[namespace],
                f"The limits of the queue {queue} are not regarded, unless its capacity is given.": has_limits,
            }
            notes[queue] = [sentence for sentence, applies in sentences.items() if applies]
        return notes


def _window(question: Question, now: datetime) -> Window:
    """Return the window of a question."""
    until = now if question.until is None else _instant("until", question.until)
    if question.since is not None:
        since = _instant("since", question.since)
    else:
        since = now if until > now else until - DEFAULT_WINDOW
    if not since < until:
        raise InvalidQuery("since", since.isoformat(), f"must be before the end of the window, {until.isoformat()}")
    if until - since > timedelta(days=MAX_DAYS):
        raise InvalidQuery("since", since.isoformat(), f"the window may have at most {MAX_DAYS} days")
    if since < now < until:
        reason = f"a window is either past or a forecast. End it by {now.isoformat()}, or leave `since` out"
        raise InvalidQuery("until", until.isoformat(), reason)
    return Window(since, until, since >= now)


def _instant(name: str, at: datetime) -> datetime:
    require_year(name, at, at.year)
    return in_utc(name, at)


def _names(question: Question, candidates: Mapping[str, JobDefinition], jobs: Collection[Job]) -> list[str]:
    """Return the jobs that take part."""
    if not candidates and not question.capacity:
        raise InvalidQuery("jobs", [], "name a job definition, or give the capacity of a queue")
    for queue, slots in question.capacity.items():
        if not is_name(queue):
            raise InvalidQuery("capacity", queue, "is not the name of a queue")
        if not 0 <= slots <= MAX_SLOTS:
            raise InvalidQuery(f"capacity.{queue}", slots, f"must be from 0 to {MAX_SLOTS:,}")
    sharing = {job.name for job in jobs if not question.capacity.keys().isdisjoint(job.definition.step_queues())}
    names = sorted({*candidates, *sharing})
    if len(names) > MAX_JOBS:
        raise InvalidQuery("jobs", len(names), f"at most {MAX_JOBS:,} jobs can be replayed together")
    return names


def _limited(
    capacity: Mapping[str, int],
    recorded: Iterable[RecordedJob],
    candidates: Mapping[str, JobDefinition],
    *,
    is_forecast: bool,
) -> dict[str, int]:
    """Return the slots of the queues in which a limit may hold tasks back.

    These are the queues with a given capacity, and those of jobs whose own limit changes. In a forecast they also are those of
    jobs with a limit, because no wait is recorded.
    """
    limited = dict(capacity)
    for job in recorded:
        registered = job.start.definition
        definition = candidates.get(job.job, registered)
        if definition is None:
            continue
        is_changed = registered is not None and registered.concurrency != definition.concurrency
        if is_changed or (is_forecast and definition.concurrency is not None):
            limited = dict.fromkeys(definition.step_queues(), UNLIMITED) | limited
    return limited
