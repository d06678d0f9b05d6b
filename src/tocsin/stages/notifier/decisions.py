"""Decisions of the leading notifier about the notifications that are not settled."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ... import telemetry
from ...domain.events import NotificationAbandoned, NotificationFact, NotificationSilenced, Silence
from ...domain.silence import covering
from ...ports import Append
from .backlog import Backlog, Lane, Waiting

NO_CHANNEL: Final = "(none)"
"""In place of a name that the settings do not have: jobs may name any number of those."""

_log = telemetry.get_logger("tocsin.notifier")


class Decision(NamedTuple):
    """An event to store: a message is prepared, or a notification ends without one."""

    channel: str
    fact: NotificationFact
    expect: int
    """The sequence of the newest event about the notification."""
    lane: Lane | None = None
    """The lane of the message that is prepared; None: the notification ends."""
    grouped: tuple[Waiting, ...] = ()
    """The notifications for which the event holds too."""

    @property
    def append(self) -> Append:
        """The event under the guard of its notification."""
        return Append((self.fact,), self.expect)


def decisions(
    backlog: Backlog, channels: Collection[str], silences: Sequence[Silence], now: datetime, window: timedelta
) -> list[Decision]:
    """Return the messages to prepare, and the ends of notifications without a message.

    Args:
        backlog: the notifications that are not settled.
        channels: the channels that the settings have.
        silences: the silences that operators defined.
        now: the time (UTC).
        window: how long a notification waits for others of its channel.
    """
    decided: list[Decision] = []
    for name, lane in backlog.lanes.items():
        if name not in channels:
            decided += _without_channel(name, lane)
        elif silenced := [*_silenced(name, lane, silences, now)]:
            decided += silenced  # a message is prepared without them, afterwards
        elif (prepared := lane.prepared(now, window)) is not None:
            (first, *others), fact = prepared
            decided.append(Decision(name, fact, first.sequence, lane, tuple(others)))
    return decided


def _silenced(channel: str, lane: Lane, silences: Sequence[Silence], now: datetime) -> Iterator[Decision]:
    """Yield the end of each notification that waits and that a silence covers."""
    if not silences or lane.preparing is not None:
        return
    for waiting in lane.waiting.values():
        if (silence := covering(silences, waiting.job, waiting.tags, now)) is not None:
            fact = NotificationSilenced(
                job=waiting.job,
                id=waiting.id,
                execution_id=waiting.execution_id,
                silence=silence.id,
                by=silence.by,
                reason=silence.reason,
            )
            yield Decision(channel, fact, waiting.sequence)


def _without_channel(name: str, lane: Lane) -> Iterator[Decision]:
    """Yield the end of each notification of a channel that the settings do not have."""
    reason = f"the settings have no channel {name}"
    _log.warning("notifications given up", action="notification-abandoned", channel=name, error=reason)
    for message in lane.messages.values():
        first = message.first
        yield Decision(
            NO_CHANNEL, _abandoned(first, message.attempts, reason), message.sequence, grouped=message.grouped
        )
    for waiting in lane.waiting.values():
        yield Decision(NO_CHANNEL, _abandoned(waiting, 0, reason), waiting.sequence)


def _abandoned(waiting: Waiting, attempt: int, reason: str) -> NotificationAbandoned:
    return NotificationAbandoned(
        job=waiting.job, id=waiting.id, execution_id=waiting.execution_id, attempt=attempt, error=reason
    )
