"""The reads of a what-if question, from the ledger and the log."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from ... import subjects
from ...domain import ledger
from ...domain.events import AgentGranted, Defined, DefinitionFact, Due, Message, QueuePaused, QueueResumed, Recorded
from ...domain.ledger import PUNCTUALITY, Timetable
from ...domain.replay import Decision, Gap, Past, gaps
from ...domain.what_if import Pause, RecordedJob, Runs
from ...ports import EventLog, StoredLog
from ...ports.queries import InvalidQuery
from ...subjects import TICKER_LEASE, Stream
from ..calculations import Calculator
from ..past_reader import DECISIONS, DEFINITIONS, SeesEvent, decisions_of, of_kind, read_all, read_portions

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

        A job that was not registered, or whose past the caller may not see, has none.
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
