"""Notifications and their delivery, as operators read them, the newest first."""

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
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
from ..ports import EventLog, pages
from ..ports.queries import NotificationQuery, Page
from ..subjects import DecodeError, Stream

RAISED: Final = subjects.filter_for("notification.raised")
PREPARED: Final = subjects.filter_for("notification.prepared")
MAX_PREPARED: Final = 20_000
"""Messages that are searched for those that stand for the notifications of a page."""

DeliveryState: TypeAlias = Literal["waiting", "sending", "retrying", "delivered", "abandoned", "silenced"]
Raised: TypeAlias = Recorded[NotificationRaised]

FAILED: Final[frozenset[DeliveryState]] = frozenset({"retrying", "abandoned"})
"""States of a notification that a receiver did not accept."""


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


async def notifications(log: EventLog, query: NotificationQuery) -> Page[NotificationRow]:
    """Return a page of notifications.

    A page has fewer rows than `limit` if `failed` leaves some out.
    """
    raised, cursor = await _raised(log, query.before, query.limit)
    rows = await _with_delivery(log, raised)
    return Page([row for row in rows if not query.failed or row.state in FAILED], cursor)


async def _raised(log: EventLog, before: int | None, limit: int) -> tuple[list[Raised], str | None]:
    """Return the newest notifications before a sequence, and the next page's cursor.

    The log is read forwards. So the part of the stream that is read is doubled until it has enough of them.
    """
    first = await anext(_events(log, RAISED, after=0, limit=1), None)
    end = await log.end(Stream.NOTIFICATIONS) + 1 if before is None else before
    if first is None or first.sequence >= end:
        return [], None
    width = 2 * limit
    while True:
        after = max(first.sequence - 1, end - 1 - width)
        found: deque[Raised] = deque(maxlen=limit + 1)
        async for recorded in _events(log, RAISED, after=after):
            if recorded.sequence >= end:
                break
            if isinstance(recorded.message, NotificationRaised):
                found.append(Recorded(recorded.message, recorded.subject, recorded.sequence, recorded.time))
        if len(found) > limit or after < first.sequence:
            page = [*reversed(found)][:limit]
            return page, str(page[-1].sequence) if len(found) > limit else None
        width *= 2


async def _with_delivery(log: EventLog, raised: Sequence[Raised]) -> list[NotificationRow]:
    own = await _histories(log, [subjects.scope_of(each.message) for each in raised])
    waiting = [each for each in raised if not own[subjects.scope_of(each.message)]]
    standing = await _messages(log, waiting)
    others = await _histories(log, {subjects.scope_of(fact) for fact in standing.values()} - own.keys())
    rows = []
    for each in raised:
        fact = each.message
        row = NotificationRow(fact.id, fact.job, fact.kind, fact.channel, fact.at, fact.execution_id, fact.reason)
        message = standing.get(fact.id)
        if message is None:
            rows.append(_followed(row, own[subjects.scope_of(fact)]))
        else:
            scope = subjects.scope_of(message)
            rows.append(replace(_followed(row, own.get(scope) or others.get(scope) or ()), message=message.id))
    return rows


async def _messages(log: EventLog, waiting: Sequence[Raised]) -> Mapping[str, NotificationPrepared]:
    """Return the messages that stand for notifications, by the id of the notification.

    The first message of a channel that goes as far as a notification stands for it. It may be prepared long after. `waiting`: the newest first.
    """
    if not waiting:
        return {}
    lanes: defaultdict[str, list[Raised]] = defaultdict(list)
    for each in waiting:
        lanes[each.message.channel].append(each)
    standing: dict[str, NotificationPrepared] = {}
    number = 0
    async for recorded in _events(log, PREPARED, after=waiting[-1].sequence):
        fact, number = recorded.message, number + 1
        if isinstance(fact, NotificationPrepared):
            lane = lanes.get(fact.channel, [])
            while lane and lane[-1].sequence <= fact.through:
                standing[lane.pop().message.id] = fact
        if len(standing) == len(waiting) or number >= MAX_PREPARED:
            break
    return standing


def _followed(row: NotificationRow, events: Iterable[Recorded[Message]]) -> NotificationRow:
    """Return a notification after events of the notification whose message stands for it."""
    for recorded in events:
        match recorded.message:
            case NotificationPrepared():
                row = replace(row, state="sending")
            case NotificationDelivered() as fact:
                row = replace(row, state="delivered", attempts=fact.attempt, error=None)
            case NotificationAttemptFailed() as fact:
                row = replace(row, state="retrying", attempts=fact.attempt, error=fact.error)
            case NotificationAbandoned() as fact:
                row = replace(row, state="abandoned", attempts=fact.attempt, error=fact.error)
            case NotificationSilenced() as fact:
                row = replace(row, state="silenced", silence=fact.silence)
            case _:
                pass
    return row


async def _histories(log: EventLog, scopes: Iterable[str]) -> dict[str, list[Recorded[Message]]]:
    names = list(scopes)
    try:
        facts = (await log.load_each(*names)).facts if names else []
    except DecodeError:  # a newer version stored an event: the others count
        facts = [[recorded async for recorded in _events(log, name, after=0)] for name in names]
    return {
        name: [recorded for recorded in each if not isinstance(recorded.message, NotificationRaised)]
        for name, each in zip(names, facts, strict=True)
    }


async def _events(log: EventLog, subject: str, *, after: int, limit: int = 1_000) -> AsyncIterator[Recorded[Message]]:
    async for page in pages(log, subject, after=after, limit=limit):
        for recorded in page:
            yield recorded
