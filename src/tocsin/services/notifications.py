"""The newest notifications and their delivery, as operators read them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from .. import subjects
from ..domain.events import (
    Message,
    NotificationAbandoned,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationPrepared,
    NotificationRaised,
    NotificationSilenced,
    Recorded,
)
from ..domain.notification import Kind
from ..ports import EventLog
from ..subjects import DecodeError, Stream

MAX_EVENTS: Final = 5_000
"""The newest events of the stream that are read."""

DeliveryState: TypeAlias = Literal["waiting", "sending", "retrying", "delivered", "abandoned", "silenced"]


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notification, and its delivery so far."""

    id: str
    job: str
    kind: Kind
    channel: str
    at: datetime
    execution_id: str | None
    reason: str
    state: DeliveryState = "waiting"
    attempts: int = 0
    error: str | None = None
    """The last answer of a receiver that did not accept it."""
    silence: str | None = None
    """The id of the silence that covers it."""
    message: str | None = None
    """The id of the notification whose message stands for it; None: it has a message of its own, or none yet."""


async def newest_notifications(log: EventLog) -> tuple[NotificationRow, ...]:
    """Return the notifications among the newest events of the stream, the newest first.

    Raises:
        LogUnavailable: the log did not answer.
    """
    end = await log.end(Stream.NOTIFICATIONS)
    after = max(0, end - MAX_EVENTS)
    events: list[Recorded[Message]] = []
    while after < end:
        try:
            batch = await log.read(subjects.notifications(), after=after)
        except DecodeError as error:
            after = max(after + 1, error.sequence or 0)
            continue
        if not batch:
            break
        events += batch
        after = batch[-1].sequence
    return tuple(reversed(rows(events)))


def rows(events: Iterable[Recorded[Message]]) -> list[NotificationRow]:
    """Return the notifications of events, the oldest first."""
    known: dict[str, NotificationRow] = {}
    waiting: dict[str, dict[str, int]] = {}
    """By channel: the sequences of the notifications for which no message stands."""
    for recorded in events:
        match recorded.message:
            case NotificationRaised() as fact:
                fields = (fact.id, fact.job, fact.kind, fact.channel, fact.at, fact.execution_id, fact.reason)
                known[fact.id] = NotificationRow(*fields)
                waiting.setdefault(fact.channel, {})[fact.id] = recorded.sequence
            case NotificationPrepared() as fact if fact.id in waiting.get(fact.channel, {}):
                lane = waiting[fact.channel]
                for member in [id_ for id_, sequence in lane.items() if sequence <= fact.through]:
                    del lane[member]
                    of = None if member == fact.id else fact.id
                    known[member] = replace(known[member], state="sending", message=of)
            case NotificationDelivered() as fact if fact.id in known:
                known[fact.id] = replace(known[fact.id], state="delivered", attempts=fact.attempt, error=None)
            case NotificationAttemptFailed() as fact if fact.id in known:
                known[fact.id] = replace(known[fact.id], state="retrying", attempts=fact.attempt, error=fact.error)
            case NotificationAbandoned() as fact if fact.id in known:
                known[fact.id] = replace(known[fact.id], state="abandoned", attempts=fact.attempt, error=fact.error)
                waiting.get(known[fact.id].channel, {}).pop(fact.id, None)
            case NotificationSilenced() as fact if fact.id in known:
                known[fact.id] = replace(known[fact.id], state="silenced", silence=fact.silence)
                waiting.get(known[fact.id].channel, {}).pop(fact.id, None)
            case _:
                pass
    return [_with_message(row, known) for row in known.values()]


def _with_message(row: NotificationRow, known: dict[str, NotificationRow]) -> NotificationRow:
    """Return a notification with the delivery of the message that stands for it."""
    if row.message is None:
        return row
    first = known[row.message]
    return replace(row, state=first.state, attempts=first.attempts, error=first.error)
