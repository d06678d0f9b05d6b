"""The use of a namespace in a day: executions, and bytes of their events.

The planner counts an execution and its first event before it begins, and skips an execution beyond a quota (ADR 97). The recorder counts
the bytes of all later events.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from .events import Dispatched, Message, Namespace, Planned, Recorded, Requested

LIFETIME_S: Final = 2 * 86_400.0
"""How long the entry of a namespace is kept after it was written, in seconds."""
_DAY: Final = timedelta(days=1)


class Need(NamedTuple):
    """The use of one occurrence or trigger."""

    executions: int
    bytes: int


class DailyUse(msgspec.Struct, frozen=True):
    """The use of a namespace in a day."""

    day: str
    """The day (UTC), such as `2026-03-01`."""
    executions: int = 0
    bytes: int = 0

    def plus(self, need: Need) -> "DailyUse":
        """Return the use with one more need."""
        return DailyUse(self.day, self.executions + need.executions, self.bytes + need.bytes)

    def fits(self, need: Need, quota: Namespace, *, later: int = 0) -> bool:
        """Return whether a need, with `later` bytes, is within the daily quotas of a namespace."""
        after = self.plus(Need(need.executions, need.bytes + later))
        return _is_within(after.executions, quota.executions_per_day) and _is_within(after.bytes, quota.bytes_per_day)


def _is_within(number: int, most: int | None) -> bool:
    return most is None or number <= most


def has_daily_quota(namespace: Namespace) -> bool:
    """Return whether a namespace has a quota for a day."""
    return namespace.executions_per_day is not None or namespace.bytes_per_day is not None


def read(entry: bytes | None, now: datetime) -> DailyUse:
    """Return the use of today from the stored entry; None: nothing is stored.

    The clock of another process may be ahead, so an entry of tomorrow counts too. Another entry, also one that cannot be read, is of another day.
    """
    today = now.astimezone(UTC)
    days = [(today + timedelta(days=number)).date().isoformat() for number in (0, 1)]
    if entry is not None:
        try:
            stored = msgspec.json.decode(entry, type=DailyUse)
        except msgspec.MsgspecError:
            return DailyUse(days[0])
        if stored.day in days:
            return stored
    return DailyUse(days[0])


def encode(use: DailyUse) -> bytes:
    """Return the entry of a use."""
    return msgspec.json.encode(use)


def need_of(first: Requested, number: int, quota: Namespace) -> Need:
    """Return the need of an occurrence or trigger that becomes some executions.

    An execution that waits for its lock is stored a second time, once it is admitted.
    """
    if quota.bytes_per_day is None:
        return Need(number, 0)
    copies = 2 if isinstance(first, Planned) else 1
    return Need(number, number * copies * len(first.encode()))


# --- later events ----------------------------------------------------------------------------------------------------


class LaterBytes(msgspec.Struct, frozen=True):
    """The bytes of the later events of a namespace's executions in a day."""

    day: date
    """The day (UTC) in which the log stored them."""
    bytes: int = 0
    sequence: int = 0
    """The sequence of the log up to which they are counted. So an event that is read again counts once."""


def counts_later(message: Message) -> bool:
    """Return whether an event counts when it is stored, and not before its execution begins."""
    if isinstance(message, Dispatched):
        return message.admits is None
    return not isinstance(message, Requested)


def with_later(entry: bytes | None, events: Iterable[Recorded[Message]]) -> bytes | None:
    """Return the entry of the later bytes with more events of the log, oldest first.

    None: the stored entry counts all of them.
    """
    before = counted = _later(entry)
    for recorded in events:
        if recorded.sequence <= counted.sequence:
            continue
        day, size = recorded.time.astimezone(UTC).date(), len(recorded.message.encode())
        if day == counted.day:
            counted = LaterBytes(day, counted.bytes + size, recorded.sequence)
        elif day > counted.day or counted.day - day > _DAY:  # else the clock of another server was behind at midnight
            counted = LaterBytes(day, size, recorded.sequence)
        else:
            counted = LaterBytes(counted.day, counted.bytes, recorded.sequence)
    return None if counted is before else msgspec.json.encode(counted)


def later_bytes(entry: bytes | None, now: datetime) -> int:
    """Return the later bytes of today from the stored entry; None: nothing is stored.

    An entry of tomorrow counts too, as in `read`.
    """
    stored, today = _later(entry), now.astimezone(UTC).date()
    return stored.bytes if stored.day in {today, today + _DAY} else 0


def _later(entry: bytes | None) -> LaterBytes:
    if entry is not None:
        try:
            return msgspec.json.decode(entry, type=LaterBytes)
        except msgspec.MsgspecError:
            pass
    return LaterBytes(date.min)
