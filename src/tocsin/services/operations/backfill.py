"""Running a job for instants of the past: because it was paused or failed then, or did not exist yet.

The instants are those that the job's schedule of now names in its zone. Each is asked for by a trigger that carries it and
the backfill's name, and its execution's id is made of the two: the same backfill run twice makes nothing twice. No scheduled
instant is used up, and the ledger stays as it is.

Backfilled executions wait for their turn under the job's lock, whatever its policy is, unless it allows overlap: of a
hundred none is skipped, and none ends another. What the schedule or anybody else asks for meanwhile goes first: it waits for
the one that is active, though its policy would have it skipped or end that, and not for those that wait.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal, TypeAlias

from ... import subjects
from ...archive.stream_reader import decoded
from ...domain import execution_plan, ids
from ...domain.definition import JobDefinition, check_input
from ...domain.events import Actor, Due, Message, Passed, Skipped, Trigger
from ...domain.schedule import parse
from ...ports import Clock, EventLog, StoredLog
from ...subjects import Stream
from ..jobs import Registry
from .errors import OperationError

Order: TypeAlias = Literal["oldest", "newest"]
Fate: TypeAlias = Literal["fired", "missing"]

MOST: Final = 100_000
"""Instants that one backfill takes: more are a slip of the keyboard, or several backfills."""
UNHURRIED: Final = 10.0
"""Executions asked for a second, unless another rate is asked for."""
_SMALLEST: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Which instants: those in [start, end), both aware."""

    start: datetime
    end: datetime
    only_missing: bool = False
    """Only those of which the log says that they did not fire, or were skipped for an active run."""
    order: Order = "oldest"
    """Which are asked for first."""

    @property
    def name(self) -> str:
        """What a backfill is called that nobody gave a name: the same span is the same backfill."""
        return f"{self.start:%Y%m%dT%H%M%S}-{self.end:%Y%m%dT%H%M%S}"


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill would do: `instants` (UTC) in the order in which they are asked for."""

    job: str
    name: str
    instants: tuple[datetime, ...]
    named: int
    """Instants that the schedule names in the span."""
    fired: int
    """How many of these fired and ran then."""
    missing: int
    """How many did not fire, or were skipped for an active run. What is neither, the ledger does not know."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One execution that was asked for."""

    scheduled_time: datetime
    execution_id: str


async def plan(
    log: StoredLog, registry: Registry, job: str, span: Span, *, now: datetime, name: str | None = None
) -> Backfill:
    """What a backfill called `name` would do at `now`; nothing is changed.

    Raises:
        JobNotFound: there is no such job.
        DefinitionError: the job does not take its own input without more.
        OperationError: the job names no instants, or too many, or they have not come.
    """
    definition = (await registry.job(job)).definition
    check_input(definition, execution_plan.input_of(Trigger(), definition), None)
    if not span.start < span.end:
        raise OperationError(
            f"a backfill from {span.start.isoformat()} to {span.end.isoformat()}: nothing lies between"
        )
    if span.end > now:
        raise OperationError(
            f"a backfill to {span.end.isoformat()}: that has not come yet; the schedule itself will see to it"
        )
    named = list(islice(_instants(definition, span), MOST + 1))
    if len(named) > MOST:
        raise OperationError(f"{job!r} has more than {MOST:,} instants in that time: make several backfills of it")
    fates = await _fates(log, job, named)
    counts = Counter(fates.values())
    name = name or span.name
    begun = await _begun(log, job)
    chosen = [
        at
        for at in named
        if (not span.only_missing or fates.get(at) == "missing") and ids.backfill_id(job, name, at) not in begun
    ]
    return Backfill(
        job=job,
        name=name,
        instants=tuple(reversed(chosen) if span.order == "newest" else chosen),
        named=len(named),
        fired=counts["fired"],
        missing=counts["missing"],
    )


async def begin(
    log: EventLog,
    backfill: Backfill,
    clock: Clock,
    *,
    rate: float = UNHURRIED,
    by: Actor | None = None,
    reason: str | None = None,
) -> AsyncIterator[Asked]:
    """Ask for the executions of a backfill, `rate` a second at most. What is interrupted can be begun again."""
    since = clock.monotonic()
    for done, at in enumerate(backfill.instants):
        if (early := since + done / rate - clock.monotonic()) > 0:
            await clock.sleep(early)
        trigger = Trigger(trigger="backfill", backfill=backfill.name, scheduled_time=at, by=by, reason=reason)
        execution_id = ids.backfill_id(backfill.job, backfill.name, at)
        await log.publish(subjects.trigger(backfill.job), trigger, message_id=f"backfill-{execution_id}")
        yield Asked(at, execution_id)


def _instants(definition: JobDefinition, span: Span) -> Iterator[datetime]:
    job = definition.name
    if definition.schedule is None:
        raise OperationError(f"{job!r} has no schedule, so it has no instants to make up for: trigger it instead")
    schedule = parse(definition.schedule, definition.timezone, dst=definition.dst)
    if schedule.interval is not None:
        raise OperationError(
            f"{job!r} runs {definition.schedule}, counted from its last run: only a calendar has a past"
        )
    after, until = span.start - _SMALLEST, span.end - _SMALLEST
    for occurrence in schedule.occurrences(after, until, anchor=span.start):
        if occurrence.skipped_local is None:
            yield occurrence.at


async def _fates(log: StoredLog, job: str, named: Sequence[datetime]) -> dict[datetime, Fate]:
    """What the log says of instants, which are in order. It says nothing of times in which the job was not there."""
    fates: dict[datetime, Fate] = {}
    wanted = frozenset(named)
    async for fact in _facts(log, Stream.LEDGER, *subjects.ledger_subjects(job, "due", "passed")):
        match fact:
            case Due(scheduled_time=at) if at in wanted:
                fates[at] = "fired"
            case Passed(start=after, until=until):
                fates |= dict.fromkeys(named[bisect_right(named, after) : bisect_right(named, until)], "missing")
    async for fact in _facts(log, Stream.LOG, f"execution.{subjects.token(job)}.*.skipped"):
        match fact:
            case Skipped(reason="overlap_skip", trigger="cron", scheduled_time=at) if at in wanted:
                fates[at] = "missing"
    return fates


async def _begun(log: StoredLog, job: str) -> set[str]:
    """The executions of a job that there were ever: the log itself forgets those that are archived."""
    if not (upto := await log.archived(Stream.LOG)):
        return set()
    filters = [f"execution.{subjects.token(job)}.*.{fact}" for fact in ("planned", "admitted")]
    portions = log.messages(Stream.LOG, *filters, after=0, upto=upto)
    return {message.subject.split(".")[2] async for portion in portions for message in portion}


async def _facts(log: StoredLog, stream: Stream, *filters: str) -> AsyncIterator[Message]:
    upto = (await log.extent(stream)).last
    async for portion in log.messages(stream, *filters, after=0, upto=upto):
        for stored in portion:
            yield decoded(stored).message
