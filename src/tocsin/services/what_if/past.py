"""The reads of a what-if question, from the ledger and the log."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Final, cast

from ... import subjects
from ...archive.stream_reader import decoded
from ...domain import ledger
from ...domain.events import (
    AgentGranted,
    Defined,
    DefinitionFact,
    Due,
    Message,
    Passed,
    QueuePaused,
    QueueResumed,
    Recorded,
)
from ...domain.ledger import PUNCTUALITY, Timetable
from ...domain.what_if import Absence, Decision, Pause, RecordedJob, Runs
from ...ports import EventLog, StoredLog, StoredMessage
from ...ports.queries import InvalidQuery
from ...subjects import TICKER_LEASE, Stream
from ..calculations import Calculator, Effort
from ..explain.evidence import gaps
from ..explain.reader import DEFINITIONS, SeesEvent, of_kind, read_all

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
    """Reads the recorded past of jobs.

    Attributes:
        log: the log, for events on definitions.
        stored: the log with its archive.
        calculate: runs the folds.
        since: the beginning of the window (UTC).
        until: its end; of a forecast, now.
        lookback: how long before the window executions are read.
        may_see: whether the caller may see a definition; None: every definition.
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

        A job that was not registered, or whose past the caller may not see, has none.

        Raises:
            InvalidQuery: the jobs of the question have too many recorded events in the window.
        """
        definitions = await self._definitions(name)
        if not definitions or not await self._is_visible(definitions):
            return RecordedJob(name, self.until, ledger.initial, Runs(self.since))
        decisions = await self._decisions(name, needs_firing=any(map(_counts_from_firing, definitions)))
        before = [fact for fact in (*definitions, *decisions) if fact.time <= self.since]
        runs = Runs(self.since)
        await self._read_runs(name, runs)
        return RecordedJob(
            name,
            self.until,
            ledger.fold(sorted(before, key=attrgetter("sequence"))),
            runs,
            [fact for fact in of_kind(DefinitionFact, definitions) if fact.time > self.since],
            [cast("Recorded[Decision]", fact) for fact in decisions if fact.time > self.since],
        )

    async def pauses(self, queue: str) -> list[Pause]:
        """Return the pauses of a queue up to the end of the window, oldest first.

        Raises:
            InvalidQuery: the question has too many recorded events.
        """
        pauses: list[Pause] = []
        for fact in await self._ledger_events(subjects.queue(queue)):
            if isinstance(fact.message, QueuePaused):
                pauses.append(Pause(fact.time, None))
            elif isinstance(fact.message, QueueResumed) and pauses:
                pauses[-1] = pauses[-1]._replace(end=fact.time)
        return pauses

    async def has_grants(self) -> bool:
        """Return whether agents of some name may get some functions only."""
        facts = await self._ledger_events(*subjects.filters_of(AgentGranted))
        return any(isinstance(fact.message, AgentGranted) for fact in facts)

    async def _ledger_events(self, *filters: str) -> list[Recorded[Message]]:
        upto = (await self.stored.extent(Stream.LEDGER)).last
        facts: list[Recorded[Message]] = []
        async for portion in self._portions(Stream.LEDGER, filters, 0, upto):
            facts += await self.calculate(partial(_decoded, portion))
        return facts

    async def absences(self) -> list[Absence]:
        """Return the times of the window in which no ticker led, as far as recorded."""
        leadership = (await self.log.leaders(TICKER_LEASE))[-MAX_LEADERS:]
        self._count(len(leadership))
        return [
            Absence(gap.start, gap.end)
            for gap in gaps(leadership)
            if (gap.end is None or gap.end > self.since)
            and (gap.start is None or gap.end is None or gap.end - gap.start > PUNCTUALITY)
        ]

    async def _is_visible(self, definitions: Sequence[Recorded[Message]]) -> bool:
        """Return whether the caller may see the definitions that were in force in the window."""
        if self.may_see is None:
            return True
        defined = [fact for fact in definitions if isinstance(fact.message, Defined)]
        earlier = [fact for fact in defined if fact.time <= self.since - self.lookback]
        in_force = [*earlier[-1:], *defined[len(earlier) :]]
        return all([await self.may_see(fact) for fact in in_force])

    async def _definitions(self, name: str) -> list[Recorded[Message]]:
        facts = await read_all(self.log, *subjects.ledger_subjects(name, *DEFINITIONS), take=self._count)
        return [fact for fact in facts if fact.time <= self.until]

    async def _decisions(self, name: str, *, needs_firing: bool) -> list[Recorded[Message]]:
        """Return the decisions of the window, and at least the last decision before it.

        `needs_firing`: at least the last instant before the window that fired.
        """
        wanted = (Due,) if needs_firing else (Due, Passed)
        upto = (await self.stored.extent(Stream.LEDGER)).last
        filters = subjects.ledger_subjects(name, "due", "passed")
        facts: list[Recorded[Message]] = []
        for after in (self.since - LOOKBACK, self.since - WIDER, 0):
            facts = []
            async for portion in self._portions(Stream.LEDGER, filters, after, upto):
                facts += await self.calculate(partial(_decoded, portion))
            if any(fact.time <= self.since and isinstance(fact.message, wanted) for fact in facts):
                break
        return facts

    async def _read_runs(self, name: str, runs: Runs) -> None:
        upto = (await self.stored.extent(Stream.LOG)).last
        filters = (*subjects.runs(name), subjects.started(name, subjects.ANY), *subjects.locks(name))
        async for portion in self._portions(Stream.LOG, filters, self.since - self.lookback, upto):
            await self.calculate(partial(_learn, runs, portion))
        runs.finish()

    async def _portions(
        self, stream: Stream, filters: Iterable[str], after: datetime | int, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield the messages up to the end of the window."""
        async with aclosing(self.stored.messages(stream, *filters, after=after, upto=upto)) as portions:
            async for portion in portions:
                messages = [message for message in portion if message.time <= self.until]
                self._count(len(messages))
                yield messages
                if len(messages) < len(portion):
                    return

    def _count(self, events: int) -> None:
        self._events += events
        if self._events > MAX_EVENTS:
            reason = (
                f"the jobs have more than {MAX_EVENTS:,} recorded events since then. Choose a later time, or fewer jobs"
            )
            raise InvalidQuery("since", self.since.isoformat(), reason)


def _counts_from_firing(fact: Recorded[Message]) -> bool:
    if not isinstance(fact.message, Defined) or fact.message.definition.schedule is None:
        return False
    return ledger.schedule_of(Timetable.of(fact.message.definition)).interval is not None


def _decoded(portion: Sequence[StoredMessage], effort: Effort) -> list[Recorded[Message]]:
    _ = effort
    return [decoded(message) for message in portion]


def _learn(runs: Runs, portion: Sequence[StoredMessage], effort: Effort) -> None:
    runs.learn(_decoded(portion, effort))
