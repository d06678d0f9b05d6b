"""The reads of a judgement: a job's definitions, and its time around an instant."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar, cast

from ... import subjects
from ...archive.stream_reader import decoded
from ...domain import ids
from ...domain.events import Defined, DefinitionFact, Due, Message, Passed, Recorded, Requested, Skipped, unfold
from ...domain.ledger import Ledger
from ...domain.log_events import LeaderChange
from ...engine.ledger_reader import LedgerReader
from ...ports import EventLog, StoredLog
from ...ports.queries import require_year
from ...subjects import TICKER_LEASE, Stream
from ..calculations import Calculator, in_place
from ..hold_ups import HoldUpReader
from ..ignored_events import read_ignored
from ..jobs import MaySee
from ..jobs.dependencies import all_visible, circle_of
from ..operations.fan_out import read_fan_out
from ..operations.lookup import ExecutionMatch
from .evidence import (
    Answer,
    BackfilledRun,
    Evidence,
    Outcome,
    Verdict,
    hidden_from,
    last_instant,
    outcome_of,
    registrations,
    triggers_of,
    without,
)
from .judgement import default_instant, judge

M = TypeVar("M", bound=Message)

MARGIN: Final = timedelta(minutes=1)
"""The time before an instant at which its decision may be stored; clocks differ by less."""
MAX_SCANNED: Final = 20_000
"""Executions of a job after an instant among which those of backfills are searched."""
MAX_IGNORED: Final = 20
"""Events that started nothing and are a part of an answer."""
REFUSED_SINCE: Final = timedelta(days=1)
"""The time before an instant in which the newest refused event is searched."""
TIME_OF_ID: Final = 13
"""Characters of an id that hold its time."""
_DAY: Final = timedelta(days=1)
_SEQUENCE: Final = attrgetter("sequence")
DEFINITIONS: Final = ("defined", "paused", "resumed", "deleted")
_TIME: Final = ("due", "passed")
_WITHOUT_EVENTS: Final[frozenset[Verdict]] = frozenset({"fired", "before-the-job", "after-deletion"})
"""No event explains these verdicts."""

_WITH_GAP: Final[frozenset[Verdict]] = frozenset({"undecided", "missed"})
"""The verdicts that the absence of a leader may explain."""

SeesDefinitions: TypeAlias = Callable[[Sequence[Recorded[DefinitionFact]]], Collection[int]]
"""Returns the sequences of those definitions of a job that the caller sees."""
SeesEvent: TypeAlias = Callable[[Recorded[Message]], Awaitable[bool]]
"""Returns whether the caller sees an event."""


class ExplainReader:
    """Answers from the log why a job ran at an instant, or did not."""

    def __init__(
        self,
        log: EventLog,
        stored: StoredLog,
        calculate: Calculator = in_place,
        *,
        hold_ups: HoldUpReader | None = None,
        sees: SeesDefinitions | None = None,
        sees_event: SeesEvent | None = None,
        may_see: MaySee = all_visible,
    ) -> None:
        """`sees`, `sees_event` and `may_see` (of a job): what the caller sees; by default everything."""
        self._log = log
        self._sees = sees
        self._sees_event = sees_event
        self._stored = stored
        self._calculate = calculate
        self._hold_ups = hold_ups
        self._may_see = may_see

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
        evidence = await read_evidence(self._log, job)
        hidden = () if self._sees is None else hidden_from(evidence, self._sees(evidence.definitions))
        evidence = without(evidence, hidden)
        if at is None:
            newest = evidence
            at = await self._calculate(lambda _: default_instant(newest))
        # A naive time differs from the same time in UTC by at most a day.
        begin = at if at.tzinfo is not None else at.replace(tzinfo=evidence.now.tzinfo) - _DAY
        end = at if at.tzinfo is not None else begin + 2 * _DAY
        around = await read_decisions(self._stored, job, begin, end)
        evidence = without(with_decisions(evidence, around), hidden)
        judged = await self._calculate(lambda _: judge(evidence, at))
        if any(answer.caught_up or answer.verdict in _WITH_GAP for answer in judged):
            led = replace(evidence, leadership=await read_leaders(self._log, evidence.definitions, begin))
            judged = await self._calculate(lambda _: judge(led, at))
        answers = [await self._with_outcome(answer) for answer in judged]
        answers = [await self._with_backfills(answer, evidence.now) for answer in answers]
        return tuple([await self._with_events(answer, evidence) for answer in answers])

    async def _with_events(self, answer: Answer, evidence: Evidence) -> Answer:
        """Add the newest events that started nothing, if no run answers."""
        governed = _with_definition(answer, evidence)
        if answer.verdict in _WITHOUT_EVENTS or not triggers_of(governed):
            return answer
        since = next(
            part[0].time for part in registrations(evidence) if any(it.sequence == answer.definition for it in part)
        )
        until = min(answer.at, evidence.now)
        records = [record for record in await read_ignored(self._log, answer.job) if record.time <= until + MARGIN]
        ignored = await self._seen(record for record in records if record.time >= since)
        refused = await self._newest_refused(answer.job, since, until)
        return replace(governed, facts=(*governed.facts, *ignored[-MAX_IGNORED:], *refused))

    async def _seen(self, records: Iterable[Recorded[Message]]) -> list[Recorded[Message]]:
        return [record for record in records if self._sees_event is None or await self._sees_event(record)]

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
        upto = (await self._stored.extent(Stream.LOG)).last
        portions, scanned = self._stored.messages(Stream.LOG, *filters, after=after, upto=upto), 0
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
        facts, letter_facts = [await self._log.load(name) for name in (scope, letter)]
        outcome = outcome_of(answer.execution_id, [*facts, *letter_facts])
        match = ExecutionMatch(answer.job, answer.execution_id, tuple(facts))
        fan_out = await read_fan_out(self._log, match)
        if fan_out is not None:
            outcome = Outcome(answer.execution_id, fan_out.status, shards=fan_out.summary)
        if outcome is not None and self._hold_ups is not None:
            outcome = replace(outcome, held_up_by=await self._hold_ups.of(facts))
        if outcome is not None and outcome.status == "planned" and outcome.waits_for_jobs:
            circle = await circle_of(answer.job, outcome.waits_for_jobs, self._ledgers, self._may_see)
            outcome = replace(outcome, circle=circle)
        return replace(answer, outcome=outcome, facts=(*answer.facts, *facts, *letter_facts))

    async def _ledgers(self, jobs: Sequence[str]) -> list[Ledger]:
        reader = LedgerReader(self._log)
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
            of_run = await self._log.load(subjects.execution(answer.job, execution_id))
            runs.append(BackfilledRun(name, execution_id, outcome_of(execution_id, of_run)))
            facts += of_run
        return replace(answer, backfills=tuple(runs), facts=tuple(facts)) if runs else answer


async def read_evidence(log: EventLog, job: str) -> Evidence:
    """Return the definitions of a job and its newest decisions, without the leaders."""
    definitions, newest = await asyncio.gather(
        read_all(log, *subjects.ledger_subjects(job, *DEFINITIONS)),
        asyncio.gather(*map(log.last, subjects.ledger_subjects(job, *_TIME))),
    )
    return Evidence(
        job=job,
        definitions=of_kind(DefinitionFact, definitions),
        decisions=sorted(_decisions(recorded for recorded in newest if recorded is not None), key=_SEQUENCE),
        leadership=(),
        now=await log.now(),  # after all others, so that no event is of the future
    )


async def read_leaders(
    log: EventLog, definitions: Iterable[Recorded[DefinitionFact]], since: datetime
) -> list[LeaderChange]:
    """Return the leaders since the definition that was in force at a time."""
    in_force = max((one.sequence for one in definitions if one.time <= since), default=0)
    return await log.leaders(TICKER_LEASE, after=in_force)


async def read_decisions(
    stored: StoredLog, job: str, begin: datetime, end: datetime, *, most: int | None = None
) -> list[Recorded[Due | Passed]]:
    """Return decisions on the time of a job from `begin` until after `end`, about `most`."""
    upto = (await stored.extent(Stream.LEDGER)).last
    filters = subjects.ledger_subjects(job, *_TIME)
    portions = stored.messages(Stream.LEDGER, *filters, after=begin - MARGIN, upto=upto)
    decisions: list[Recorded[Due | Passed]] = []
    async with aclosing(portions):
        async for portion in portions:
            decisions += _decisions([decoded(message) for message in portion])
            if decisions and (
                last_instant(decisions[-1].message) > end or (most is not None and len(decisions) > most)
            ):
                break
    return decisions


def _with_definition(answer: Answer, evidence: Evidence) -> Answer:
    """Add the definition in force, which a later pause or resumption does not repeat."""
    defined = [
        recorded
        for recorded in evidence.definitions
        if recorded.sequence == answer.definition and isinstance(recorded.message, Defined)
    ]
    added = [recorded for recorded in defined if recorded not in answer.facts]
    return replace(answer, facts=(*added, *answer.facts)) if added else answer


def with_decisions(evidence: Evidence, decisions: Sequence[Recorded[Due | Passed]]) -> Evidence:
    known = {decision.sequence: decision for decision in (*evidence.decisions, *decisions)}
    return replace(evidence, decisions=[known[sequence] for sequence in sorted(known)])


async def read_all(
    log: EventLog, *filters: str, after: int = 0, take: Callable[[int], None] | None = None
) -> list[Recorded[Message]]:
    """Return all messages after a number, oldest first. `take` gets the size of each batch."""

    async def of(subject: str) -> list[Recorded[Message]]:
        messages: list[Recorded[Message]] = []
        while batch := await log.read(subject, after=messages[-1].sequence if messages else after):
            if take is not None:
                take(len(batch))
            messages += batch
        return messages

    return sorted(chain.from_iterable(await asyncio.gather(*map(of, filters))), key=_SEQUENCE)


def of_kind(kind: type[M], recorded: Iterable[Recorded[Message]]) -> list[Recorded[M]]:
    return [cast("Recorded[M]", event) for event in recorded if isinstance(event.message, kind)]


def _decisions(recorded: Iterable[Recorded[Message]]) -> list[Recorded[Due | Passed]]:
    return [cast("Recorded[Due | Passed]", event) for event in recorded if isinstance(event.message, Due | Passed)]
