"""The notifications that are not settled yet, folded from their events.

A notification waits until a message stands for it. Of a message, only its first notification has further events, which hold for all
of its notifications. The fold depends on the events alone, so each process that follows them has the same backlog.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Final, NamedTuple

from ...domain.events import (
    Message,
    NotificationAttemptFailed,
    NotificationFact,
    NotificationPrepared,
    NotificationRaised,
    OutcomeChanged,
    Recorded,
)
from ...domain.notification import MAX_OTHER_JOBS

MAX_OPEN: Final = 4
"""Messages of a channel that are sent or wait for another attempt at the same time. Beyond it, notifications wait and are grouped."""


class Waiting(NamedTuple):
    """A notification for which no message stands yet."""

    id: str
    job: str
    channel: str
    tags: tuple[str, ...]
    sequence: int
    raised_at: datetime
    execution_id: str | None = None


@dataclass(slots=True)
class OpenMessage:
    """A message that was prepared, and neither delivered nor given up."""

    first: Waiting
    others: int
    other_jobs: tuple[str, ...]
    sequence: int
    """The sequence of the newest event about it."""
    newest_at: datetime
    """When the newest of its notifications was raised."""
    grouped: tuple[Waiting, ...] = ()
    """Its notifications after the first."""
    attempts: int = 0
    due: datetime | None = None
    """The time (UTC) of the next attempt; None: now."""
    is_busy: bool = False
    """Whether this process sends it, or waits until it reads the answer that it stored."""


@dataclass(slots=True)
class Lane:
    """The backlog of one channel."""

    waiting: dict[str, Waiting] = field(default_factory=dict)
    """In the order of their sequences."""
    messages: dict[str, OpenMessage] = field(default_factory=dict)
    """By the id of their first notification."""
    preparing: str | None = None
    """The first notification of the message that this process prepares."""

    def prepared(self, now: datetime, window: timedelta) -> tuple[tuple[Waiting, ...], NotificationPrepared] | None:
        """Return the next message to prepare, and its notifications; None: it is not time."""
        if not self.waiting or self.preparing is not None or len(self.messages) >= MAX_OPEN:
            return None
        first, *others = self.waiting.values()
        if now < first.raised_at + window:
            return None
        names = dict.fromkeys(other.job for other in others if other.job != first.job)
        last = others[-1] if others else first
        return (first, *others), NotificationPrepared(
            job=first.job,
            id=first.id,
            execution_id=first.execution_id,
            channel=first.channel,
            through=last.sequence,
            others=len(others),
            other_jobs=tuple(names)[:MAX_OTHER_JOBS],
        )

    def due(self, now: datetime) -> list[OpenMessage]:
        """Return the messages to send now."""
        return [
            message
            for message in self.messages.values()
            if not message.is_busy and (message.due is None or message.due <= now)
        ]


class Backlog:
    """The unsettled notifications of all channels."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        """By channel, each channel with a backlog."""
        self._channels: dict[str, str] = {}
        """The channel of each notification that waits or is the first of a message."""

    @property
    def oldest(self) -> int | None:
        """The sequence of the oldest unsettled notification; None: all are settled."""
        sequences = [waiting.sequence for lane in self.lanes.values() for waiting in _oldest(lane)]
        return min(sequences, default=None)

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event."""
        match recorded.message:
            case NotificationRaised() as fact:
                waiting = Waiting(
                    *(fact.id, fact.job, fact.channel, fact.tags, recorded.sequence, recorded.time, fact.execution_id)
                )
                self.lanes.setdefault(fact.channel, Lane()).waiting[fact.id] = waiting
                self._channels[fact.id] = fact.channel
            case NotificationPrepared() as fact:
                self._prepare(fact, recorded.sequence)
            case NotificationAttemptFailed() as fact:
                if (message := self._message(fact.id)) is not None:
                    message.attempts, message.due = fact.attempt, fact.next_attempt_at
                    message.sequence, message.is_busy = recorded.sequence, False
            case OutcomeChanged():
                pass
            case NotificationFact() as fact:
                self.forget(fact.id)

    def _prepare(self, fact: NotificationPrepared, sequence: int) -> None:
        """Let a message stand for the notifications of its channel that wait."""
        lane = self.lanes.get(fact.channel)
        if lane is None:
            return
        if lane.preparing == fact.id:
            lane.preparing = None
        if fact.id not in lane.waiting:
            return  # another message stands for it: two processes prepared at once
        members = [waiting for waiting in lane.waiting.values() if waiting.sequence <= fact.through]
        for waiting in members:
            del lane.waiting[waiting.id]
            if waiting.id != fact.id:
                del self._channels[waiting.id]
        first = next(waiting for waiting in members if waiting.id == fact.id)
        newest_at = max(waiting.raised_at for waiting in members)
        grouped = tuple(waiting for waiting in members if waiting is not first)
        lane.messages[fact.id] = OpenMessage(first, fact.others, fact.other_jobs, sequence, newest_at, grouped)

    def _message(self, notification: str) -> OpenMessage | None:
        channel = self._channels.get(notification)
        return None if channel is None else self.lanes[channel].messages.get(notification)

    def forget(self, notification: str) -> None:
        """Remove a notification that is settled, or that the stream dropped."""
        if (channel := self._channels.pop(notification, None)) is None:
            return
        lane = self.lanes[channel]
        lane.waiting.pop(notification, None)
        lane.messages.pop(notification, None)
        if lane.preparing == notification:
            lane.preparing = None
        if not lane.waiting and not lane.messages:
            del self.lanes[channel]

    def trim(self, first: int) -> int:
        """Remove the notifications that wait and are older than the stream; return their number.

        `first`: the sequence of the first event that the stream has.
        """
        dropped = [
            waiting.id
            for lane in self.lanes.values()
            for waiting in takewhile(lambda waiting: waiting.sequence < first, lane.waiting.values())
        ]
        for notification in dropped:
            self.forget(notification)
        return len(dropped)


def _oldest(lane: Lane) -> Iterator[Waiting]:
    yield from (message.first for message in lane.messages.values())
    yield from islice(lane.waiting.values(), 1)
