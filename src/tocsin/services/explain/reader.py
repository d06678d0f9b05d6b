"""The reads of an explanation, beside the past of its job."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from ... import subjects
from ...archive.stream_reader import decoded
from ...domain import ids
from ...domain.events import Defined, Message, Recorded, Requested, Skipped, unfold
from ...domain.ledger import Ledger
from ...domain.replay import Past, Verdict
from ...engine.ledger_reader import LedgerReader
from ...ports import EventLog, StoredLog
from ...ports.queries import require_year
from ...subjects import Stream
from ..calculations import Calculator, in_place
from ..hold_ups import HoldUpReader
from ..ignored_events import read_ignored
from ..jobs import MaySee
from ..jobs.dependencies import all_visible, circle_of
from ..operations.lookup import ExecutionMatch, read_fan_out
from ..past_reader import MARGIN, SeesDefinitions, SeesEvent, read_decisions, read_leaders, read_past
from .judgement import Answer, BackfilledRun, Outcome, default_instant, judge, outcome_of, triggers_of

MAX_SCANNED: Final = 20_000
"""Executions of a job after an instant among which those of backfills are searched."""
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

    `sees`, `sees_event` and `may_see` (of a job): what the caller sees; by default everything.
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
