"""The events that triggers of a job heard, and that started nothing."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .. import subjects
from ..domain.events import EventIgnored, IgnoredReason, Recorded
from ..domain.text import printable
from ..ports import EventLog, pages
from .past_reader import of_kind

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
