"""The reads of a job's past: definitions, decisions on its time, leaders, and ignored events."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar, cast

from .. import subjects
from ..archive.stream_reader import decoded
from ..domain.events import DefinitionFact, Due, EventIgnored, IgnoredReason, Message, Passed, Recorded
from ..domain.log_events import LeaderChange
from ..domain.replay import Decision, Past, last_instant
from ..domain.text import printable
from ..ports import EventLog, StoredLog, pages
from ..subjects import TICKER_LEASE, Stream
from .calculations import Calculator, in_place

M = TypeVar("M", bound=Message)

MARGIN: Final = timedelta(minutes=1)
"""The time before an instant at which its decision may be stored; clocks differ by less."""
DEFINITIONS: Final = ("defined", "paused", "resumed", "deleted")
DECISIONS: Final = ("due", "passed")
_SEQUENCE: Final = attrgetter("sequence")

SeesDefinitions: TypeAlias = Callable[[Sequence[Recorded[DefinitionFact]]], Collection[int]]
"""Returns the sequences of those definitions of a job that the caller sees."""
SeesEvent: TypeAlias = Callable[[Recorded[Message]], Awaitable[bool]]
"""Returns whether the caller sees an event."""
TakeEvents: TypeAlias = Callable[[int], None]
"""Gets the number of the events of each batch, and may refuse more."""


def any_number(_: int) -> None:
    """Take events without a limit."""


async def read_past(log: EventLog, job: str) -> Past:
    """Return the definitions of a job and its newest decisions, without the leaders."""
    definitions, newest = await asyncio.gather(
        read_all(log, *subjects.ledger_subjects(job, *DEFINITIONS)),
        asyncio.gather(*map(log.last, subjects.ledger_subjects(job, *DECISIONS))),
    )
    decisions = sorted(decisions_of(recorded for recorded in newest if recorded is not None), key=_SEQUENCE)
    # The time comes after all others, so that no event is of the future.
    return Past(job, of_kind(DefinitionFact, definitions), decisions, (), await log.now())


async def read_leaders(past: Past, log: EventLog, since: datetime) -> list[LeaderChange]:
    """Return the leaders since the definition that was in force at a time."""
    in_force = max((one.sequence for one in past.definitions if one.time <= since), default=0)
    return await log.leaders(TICKER_LEASE, after=in_force)


async def read_decisions(
    stored: StoredLog, job: str, begin: datetime, end: datetime, *, most: int | None = None
) -> list[Recorded[Decision]]:
    """Return decisions on the time of a job from `begin` until after `end`, about `most`."""
    decisions: list[Recorded[Decision]] = []
    portions = read_portions(stored, Stream.LEDGER, subjects.ledger_subjects(job, *DECISIONS), after=begin - MARGIN)
    async with aclosing(portions):
        async for portion in portions:
            decisions += decisions_of(portion)
            is_enough = most is not None and len(decisions) > most
            if decisions and (is_enough or last_instant(decisions[-1].message) > end):
                break
    return decisions


async def read_portions(
    stored: StoredLog,
    stream: Stream,
    filters: Iterable[str],
    *,
    after: datetime | int = 0,
    until: datetime | None = None,
    take: TakeEvents = any_number,
    calculate: Calculator = in_place,
) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
    """Yield the events of a stream up to a time, oldest first."""
    upto = (await stored.extent(stream)).last
    async with aclosing(stored.messages(stream, *filters, after=after, upto=upto)) as portions:
        async for portion in portions:
            messages = [message for message in portion if until is None or message.time <= until]
            take(len(messages))
            yield await calculate(lambda _, messages=messages: [*map(decoded, messages)])  # type: ignore[misc]
            if len(messages) < len(portion):
                return


async def read_all(
    log: EventLog, *filters: str, after: int = 0, take: TakeEvents = any_number
) -> list[Recorded[Message]]:
    """Return all messages after a number, oldest first."""

    async def of(subject: str) -> list[Recorded[Message]]:
        messages: list[Recorded[Message]] = []
        while batch := await log.read(subject, after=messages[-1].sequence if messages else after):
            take(len(batch))
            messages += batch
        return messages

    return sorted(chain.from_iterable(await asyncio.gather(*map(of, filters))), key=_SEQUENCE)


def of_kind(kind: type[M], recorded: Iterable[Recorded[Message]]) -> list[Recorded[M]]:
    return [cast("Recorded[M]", event) for event in recorded if isinstance(event.message, kind)]


def decisions_of(recorded: Iterable[Recorded[Message]]) -> list[Recorded[Decision]]:
    return [cast("Recorded[Decision]", event) for event in recorded if isinstance(event.message, Due | Passed)]


MAX_SHOWN: Final = 1_000
"""The most events of an answer."""


@dataclass(frozen=True, slots=True)
class IgnoredEvent:
    """An event that started nothing."""

    stream: str
    """The stream of the event."""
    sequence: int
    """Its position there."""
    subject: str
    time: datetime
    """When the stream stored it."""
    reason: IgnoredReason
    """`condition_false`; `duplicate`: another event with its key started the execution; `debounced`: a later event of its key did;
    `trigger_removed`: the trigger was removed, or its job paused, before the end of the debounce;
    `too_many_keys`: it waits in its stream, because as many keys of the trigger as `triggers.max_keys` allows have a debounce."""
    recorded_at: datetime
    key: str | None = None
    execution_id: str | None = None
    """The execution of the other event."""


async def read_ignored(
    log: EventLog, job: str, *, limit: int = MAX_SHOWN, sequence: int | None = None
) -> list[Recorded[EventIgnored]]:
    """Return the records of the newest events of a job that started nothing, oldest first.

    `sequence`: only of events with this position in their stream.
    """
    newest: deque[Recorded[EventIgnored]] = deque(maxlen=limit)
    async for page in pages(log, subjects.ignored_events(job)):
        records = of_kind(EventIgnored, page)
        newest.extend(record for record in records if sequence in {None, record.message.event.sequence})
    return [*newest]


def shown(recorded: Recorded[EventIgnored]) -> IgnoredEvent:
    """Return a record as it is shown: the texts of other programs without control characters."""
    fact = recorded.message
    return IgnoredEvent(
        stream=fact.event.stream,
        sequence=fact.event.sequence,
        subject=printable(fact.event.subject),
        time=fact.event.time,
        reason=fact.reason,
        recorded_at=recorded.time,
        key=None if fact.key is None else printable(fact.key),
        execution_id=fact.execution_id,
    )
