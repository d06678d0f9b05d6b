"""The clock of a simulation."""

import asyncio
import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from typing_extensions import override

from ..adapters.memory.clock import ManualClock
from ..domain import duration
from ..domain.schedule import timezones

POLL_S: Final = 1.5
"""A loop that looks for work sleeps no longer than this between two looks; a longer sleep is a delay."""
GRID_S: Final = 0.5
"""Loops that look for work do so together, at multiples of this, because each moment costs the simulation some turns."""

_CALENDAR: Final = re.compile(r"\s*(\d+)\s*(day|week)s?\b\s*")
_WORDS: Final = re.compile(r"\s*(\d+)\s*(second|minute|hour)s?\b\s*")
_DAYS: Final = {"day": 1, "week": 7}


def zone_of(name: str) -> tzinfo:
    """Return a time zone of the table that schedules use."""
    try:
        return timezones.zone(name).data
    except ValueError as error:
        raise ValueError(f"tz: {error}") from None


def end_of(start: datetime, span: str | float | timedelta, zone: tzinfo) -> datetime:
    """Return the end (UTC) of a span.

    `3 days` ends at the same time of the day in the zone, also across a change of its clocks. `72h` and a `timedelta` are exact. In
    `2 days 12h`, the exact part follows the days.
    """
    try:
        if isinstance(span, timedelta):
            return start + _checked(span)
        if not isinstance(span, str):
            return start + _checked(timedelta(seconds=duration.parse(span)))
        return _end_of_text(start, span, zone)
    except OverflowError:
        raise ValueError(f"span: no time is {span!r} after {start.isoformat()}; pass a shorter one") from None


def _end_of_text(start: datetime, span: str, zone: tzinfo) -> datetime:
    days, exact, rest = timedelta(), timedelta(), span
    while part := _CALENDAR.match(rest):
        days, rest = days + timedelta(days=int(part[1]) * _DAYS[part[2]]), rest[part.end() :]
    while part := _WORDS.match(rest):
        exact, rest = exact + timedelta(**{f"{part[2]}s": int(part[1])}), rest[part.end() :]
    if rest or not span.strip():
        exact += _checked(timedelta(seconds=duration.parse(rest)))
    local = start.astimezone(zone).replace(tzinfo=None) + days
    return (max(start, local.replace(tzinfo=zone).astimezone(UTC)) if days else start) + exact


def instant_of(at: datetime | str, zone: tzinfo) -> datetime:
    """Return an instant in UTC; a time without an offset is in the zone."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise ValueError(f"at: write a time in ISO 8601, such as 2026-03-08T00:00, not {at!r}") from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)


def _checked(span: timedelta) -> timedelta:
    if span < timedelta():
        raise ValueError(f"time does not go back: pass a span of at least 0 seconds, not {span}")
    return span


class SimulatedClock(ManualClock):
    """A clock that can skip time, as a machine does that sleeps."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self._polls: dict[asyncio.Future[None], None] = {}

    @override
    async def sleep(self, seconds: float) -> None:
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if seconds <= POLL_S:
            self._polls[awake] = None
            now = self.monotonic()
            seconds = math.ceil((now + max(seconds, GRID_S / 10)) / GRID_S) * GRID_S - now
        alarm = self.after(seconds, lambda: _wake(awake))
        try:
            await awake
        finally:
            alarm.cancel()
            self._polls.pop(awake, None)

    def skip(self, span: timedelta) -> None:
        """Let the wall clock run on: waits for an instant end, and sleeps do not."""
        self.step(span.total_seconds())

    def wake_polls(self) -> None:
        """Let every loop that looks for work look now."""
        for awake in tuple(self._polls):
            _wake(awake)


def _wake(awake: "asyncio.Future[None]") -> None:
    if not awake.done():
        awake.set_result(None)
