"""The use of a namespace in a day: executions, and bytes of their events."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from .events import Namespace, Planned, Requested

LIFETIME_S: Final = 2 * 86_400.0
"""How long the entry of a namespace is kept after it was written, in seconds."""


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

    def on(self, day: str) -> "DailyUse":
        """Return the use on a day: nothing, if this is the use of another day."""
        return self if self.day == day else DailyUse(day)

    def plus(self, need: Need) -> "DailyUse":
        return DailyUse(self.day, self.executions + need.executions, self.bytes + need.bytes)

    def fits(self, need: Need, quota: Namespace) -> bool:
        """Return whether a need is within the daily quotas of a namespace."""
        after = self.plus(need)
        limits = ((after.executions, quota.executions_per_day), (after.bytes, quota.bytes_per_day))
        return all(most is None or number <= most for number, most in limits)


def has_daily_quota(namespace: Namespace) -> bool:
    return namespace.executions_per_day is not None or namespace.bytes_per_day is not None


def read(entry: bytes | None, now: datetime) -> DailyUse:
    """Return the use of today from the stored entry; None: nothing is stored.

    The clock of another process may be ahead, so an entry of tomorrow counts too. Another entry, also one that cannot be read, is of another day.
    """
    today = now.astimezone(UTC)
    days = [(today + timedelta(days=number)).date().isoformat() for number in (0, 1)]
    try:
        stored = msgspec.json.decode(entry or b"", type=DailyUse)
    except msgspec.MsgspecError:
        return DailyUse(days[0])
    return stored if stored.day in days else DailyUse(days[0])


def encode(use: DailyUse) -> bytes:
    return msgspec.json.encode(use)


def need_of(first: Requested, number: int, quota: Namespace) -> Need:
    """Return the need of an occurrence or trigger that becomes some executions.

    An execution that waits for its lock is stored a second time, once it is admitted.
    """
    if quota.bytes_per_day is None:
        return Need(number, 0)
    copies = 2 if isinstance(first, Planned) else 1
    return Need(number, number * copies * len(first.encode()))
