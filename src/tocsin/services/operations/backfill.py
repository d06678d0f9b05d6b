"""Backfill: run a job for instants of the past.

The job's current schedule names the instants in its zone. A trigger for each carries the instant and the backfill's name,
and the execution's id is derived from both, so running the same backfill twice makes no second execution. A backfill uses
up no scheduled instant and leaves the ledger as it is.

Unless the job allows overlap, backfilled executions wait for its lock under any overlap policy: none is skipped and
none cancels another. Other executions of the job go first: they wait for the active execution, even if their policy would
skip or cancel, but not for waiting backfilled executions.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, Literal, TypeAlias

from ... import subjects
from ...domain import ids
from ...domain.definition import JobDefinition, check_input
from ...domain.events import LOCK_SKIPS, Actor, Due, Passed, Skipped, Trigger
from ...domain.ledger import Timetable, schedule_of
from ...domain.replay import INSTANT
from ...engine.request_ids import DEDUP_WINDOW
from ...ports import Clock, EventLog, StoredLog
from ...ports.queries import InvalidQuery, in_utc
from ...subjects import Stream
from ..calculations import Calculator, Effort, in_place
from ..jobs import Registry
from ..past_reader import DECISIONS, read_portions
from .errors import OperationError

Order: TypeAlias = Literal["oldest", "newest"]
Fate: TypeAlias = Literal["fired", "missing"]

MAX_INSTANTS: Final = 100_000
"""Maximum of instants in one backfill; more are probably a typing error."""
EARLIEST_YEAR: Final = 1970
DEFAULT_RATE: Final = 10.0
"""Triggers per second, unless the caller sets another rate."""


@dataclass(frozen=True, slots=True)
class Span:
    """Instants in [start, end), both aware."""

    start: datetime
    end: datetime
    only_missing: bool = False
    """Only instants that did not fire, or were skipped because of an active execution."""
    order: Order = "oldest"
    """Which instants are triggered first."""

    @property
    def name(self) -> str:
        """The default name of a backfill: the same span is the same backfill."""
        return f"{self.start:%Y%m%dT%H%M%S}-{self.end:%Y%m%dT%H%M%S}"


@dataclass(frozen=True, slots=True)
class Backfill:
    """Plan of a backfill: `instants` (UTC) in the order of their triggers."""

    job: str
    name: str
    instants: tuple[datetime, ...]
    named: int
    """Number of instants that the schedule names in the span."""
    fired: int
    """Number of these instants that fired and ran."""
    missing: int
    """Number of these instants that did not fire or were skipped; of the rest nothing is known."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A triggered execution."""

    scheduled_time: datetime
    execution_id: str


async def plan(
    log: StoredLog,
    registry: Registry,
    job: str,
    span: Span,
    *,
    now: datetime,
    name: str | None = None,
    calculate: Calculator = in_place,
) -> Backfill:
    """Plan a backfill without changing anything.

    Raises:
        JobNotFound: no job has this name.
        DefinitionError: the job cannot run with its own input alone.
        OperationError: the job names no instants or too many, or the span is not in the past.
        InvalidQuery: the span begins or ends before 1970.
    """
    for field, time in (("start", span.start), ("end", span.end)):
        if in_utc(field, time).year < EARLIEST_YEAR:
            raise InvalidQuery(field, time.isoformat(), f"must be in {EARLIEST_YEAR} or later")
    definition = (await registry.job(job)).definition
    check_input(definition, {})
    if not span.start < span.end:
        raise OperationError(
            f"cannot backfill from {span.start.isoformat()} to {span.end.isoformat()}: the end must be later than the start",
            code="empty-span",
        )
    if span.end > now:
        raise OperationError(
            f"cannot backfill to {span.end.isoformat()}: that is in the future. The schedule itself runs it.",
            code="future-span",
        )
    instants = await calculate(lambda effort: _first(_instants(definition, span), effort))
    if len(instants) > MAX_INSTANTS:
        raise OperationError(
            f"cannot backfill {job!r}: it has more than {MAX_INSTANTS:,} instants in that time. Run several backfills.",
            code="too-many-instants",
        )
    fates = await _fates(log, job, instants)
    counts = Counter(fates.values())
    title = name or span.name
    begun = await _begun_before(log, job, now - DEDUP_WINDOW)
    selected = await calculate(
        lambda _: [
            at
            for at in instants
            if (not span.only_missing or fates.get(at) == "missing") and ids.backfill_id(job, title, at) not in begun
        ]
    )
    return Backfill(
        job=job,
        name=title,
        instants=tuple(reversed(selected) if span.order == "newest" else selected),
        named=len(instants),
        fired=counts["fired"],
        missing=counts["missing"],
    )


async def begin(
    log: EventLog,
    backfill: Backfill,
    clock: Clock,
    *,
    rate: float = DEFAULT_RATE,
    by: Actor | None = None,
    reason: str | None = None,
) -> AsyncIterator[Asked]:
    """Trigger the executions of a backfill, at most `rate` per second.

    An interrupted backfill can be started again.
    """
    since = clock.monotonic()
    for done, at in enumerate(backfill.instants):
        if (early := since + done / rate - clock.monotonic()) > 0:
            await clock.sleep(early)
        trigger = Trigger(trigger="backfill", backfill=backfill.name, scheduled_time=at, by=by, reason=reason)
        execution_id = ids.backfill_id(backfill.job, backfill.name, at)
        await log.publish(subjects.trigger(backfill.job, execution_id), trigger, message_id=execution_id)
        yield Asked(at, execution_id)


def _first(instants: Iterator[datetime], effort: Effort) -> list[datetime]:
    first = list[datetime]()
    for at in islice(instants, MAX_INSTANTS + 1):
        effort.is_spent()  # ends when the caller leaves; the number bounds the work
        first.append(at)
    return first


def _instants(definition: JobDefinition, span: Span) -> Iterator[datetime]:
    job = definition.name
    if definition.schedule is None:
        raise OperationError(f"cannot backfill {job!r}: it has no schedule. Trigger it instead.", code="no-schedule")
    schedule = schedule_of(Timetable.of(definition))
    if schedule.interval is not None:
        raise OperationError(
            f"cannot backfill {job!r}: {definition.schedule} counts from its last run and names no past instants. Trigger it instead.",
            code="no-calendar",
        )
    after, until = span.start - INSTANT, span.end - INSTANT
    for occurrence in schedule.occurrences(after, until, anchor=span.start):
        if occurrence.fires:
            yield occurrence.at


async def _fates(log: StoredLog, job: str, named: Sequence[datetime]) -> dict[datetime, Fate]:
    """Return the fate of sorted instants, as far as the log knows it."""
    fates: dict[datetime, Fate] = {}
    instants = frozenset(named)
    ledger, skips = subjects.ledger_subjects(job, *DECISIONS), [f"execution.{subjects.token(job)}.*.skipped"]
    for stream, filters in ((Stream.LEDGER, ledger), (Stream.LOG, skips)):
        async for portion in read_portions(log, stream, filters):
            for recorded in portion:
                match recorded.message:
                    case Due(scheduled_time=at) if at in instants:
                        fates[at] = "fired"
                    case Passed(start=after, until=until):
                        passed = named[bisect_right(named, after) : bisect_right(named, until)]
                        fates |= dict.fromkeys(passed, "missing")
                    case Skipped(trigger="cron", scheduled_time=at, reason=reason) if (
                        at in instants and reason in LOCK_SKIPS
                    ):
                        fates[at] = "missing"
    return fates


async def _begun_before(log: StoredLog, job: str, time: datetime) -> set[str]:
    """Return the ids of a job's executions that are older than a time.

    The planner knows the requests of newer executions.
    """
    upto = (await log.extent(Stream.LOG)).last
    portions = log.messages(Stream.LOG, *subjects.openings(job), after=0, upto=upto)
    return {message.subject.split(".")[2] async for portion in portions for message in portion if message.time <= time}
