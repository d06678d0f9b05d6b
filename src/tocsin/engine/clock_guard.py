"""A measurement of the log's clock, and a judgement on the clock of this machine.

A reading of the log's clock lies between the request and the reply, so two readings of the local clocks bound the error
without any assumption about the network: a slow link or a paused process gives a wide range, never a wrong value. Leaders
decide by the log's clock, so that an offset within the limit fires nothing early or late. The time of a leader is the
earliest that the log's clock can show, and runs on with the monotonic clock, so that setting the wall clock does not change it.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from .. import telemetry
from ..ports import Clock, InputLog, LogUnavailable
from ..ports.commit_log import CommitLog

LIMIT_S: Final = 10.0
"""The largest offset from the log's clock with which a process may lead."""
AGAIN_S: Final = 9.0
"""The largest offset with which a clock becomes credible again, so that the judgement does not alternate at the limit."""
CHECK_INTERVAL_S: Final = 5.0
"""Time after which the log's clock is read again even if the local clocks agree."""
MAX_JUMP_S: Final = 1.0
"""Difference between wall clock and monotonic clock after which earlier measurements do not count."""
PRECISE_S: Final = 1.0
"""Error of the first measurement above which it is repeated."""
ATTEMPTS: Final = 3
MAX_DRIFT: Final = 0.001
"""Difference between the rates of two clocks, both of which may be slewed at 500 parts per million."""
RESOLUTION_S: Final = 2e-6
"""Two times of the log are compared, and each shows whole microseconds."""

_log = telemetry.get_logger("tocsin.clock")
_clock_offset: Final = telemetry.meter().create_gauge(
    "tocsin_clock_offset_seconds", description="Seconds by which the clock of this process is ahead of the log's."
)


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of an unknown number of seconds."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The estimate with the smallest possible error."""
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """The largest error of `middle`."""
        return (self.high - self.low) / 2

    @property
    def least(self) -> float:
        """The smallest possible distance from zero."""
        return max(0.0, self.low, -self.high)

    def intersection(self, other: "Interval") -> "Interval | None":
        """Return what both bounds allow; None: they contradict each other."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high) if low <= high else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The local clocks, read together."""

    wall: datetime
    monotonic: float

    def jump_since(self, earlier: "Reading") -> float:
        """Return the seconds that the wall clock gained on the monotonic clock.

        The wall clock was set, or the machine slept, which a monotonic clock does not count.
        """
        return (self.wall - earlier.wall).total_seconds() - (self.monotonic - earlier.monotonic)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A reading of the log's clock between two readings of the local clocks.

    `log` is UTC.
    """

    before: Reading
    log: datetime
    after: Reading

    @property
    def is_steady(self) -> bool:
        """Return whether the local clocks agree on the time that the request took."""
        return abs(self.after.jump_since(self.before)) <= MAX_JUMP_S


@dataclass(frozen=True, slots=True)
class LogTime:
    """The monotonic times between which the log's clock showed `log` (UTC)."""

    log: datetime
    shown: Interval

    @classmethod
    def after(cls, earlier: "LogTime | None", measurement: Measurement) -> "LogTime":
        """Return what a measurement adds to what was known.

        An earlier measurement over a faster road bounds a later one. If they contradict each other, the log's clock was
        set, and only the later counts.
        """
        log = measurement.log
        shown = Interval(measurement.before.monotonic, measurement.after.monotonic)
        if earlier is None:
            return cls(log, shown)
        passed = (log - earlier.log).total_seconds()
        drift = MAX_DRIFT * abs(passed) + RESOLUTION_S
        expected = Interval(earlier.shown.low + passed - drift, earlier.shown.high + passed + drift)
        return cls(log, expected.intersection(shown) or shown)

    def at(self, monotonic: float) -> datetime:
        """Return the earliest time that the log's clock can show at a monotonic time."""
        return self.log + timedelta(seconds=monotonic - self.shown.high)

    def offset(self, reading: Reading) -> Interval:
        """Return the seconds by which the wall clock is ahead of the log's clock."""
        ahead = (reading.wall - self.log).total_seconds() - reading.monotonic
        return Interval(ahead + self.shown.low, ahead + self.shown.high)


class ClockGuard:
    """Measures the log's clock, and judges the clock of this machine by it.

    The clock is not credible only if its offset is certainly above the limit.
    """

    def __init__(self, log: InputLog | CommitLog, clock: Clock) -> None:
        self.clock: Final = clock
        self._log = log
        self._lock = asyncio.Lock()
        self._time: LogTime | None = None
        self._checked = Reading(clock.now(), clock.monotonic())
        self._offset: Interval | None = None
        self._is_within = True

    @property
    def offset(self) -> Interval | None:
        """The seconds by which the wall clock is ahead of the log's clock; None: unknown."""
        return self._offset if self._known() else None

    @property
    def is_credible(self) -> bool:
        """Return whether the clock is known to be near enough to the log's."""
        return self._known() is not None and self._is_within

    @property
    def is_wrong(self) -> bool:
        """Return whether the clock is certainly too far from the log's."""
        return self._known() is not None and not self._is_within

    def now(self) -> datetime | None:
        """Return the time (UTC) by the log's clock, or slightly less; None: unknown."""
        known = self._known()
        return None if known is None else known.at(self.clock.monotonic())

    async def check(self) -> None:
        """Measure the log's clock, unless it was measured lately and the local clocks agree.

        Raises:
            LogUnavailable: the log's clock is unknown.
        """
        async with self._lock:
            known = self._known()
            if known is not None and self.clock.monotonic() - self._checked.monotonic < CHECK_INTERVAL_S:
                return
            for _ in range(ATTEMPTS if known is None else 1):
                try:
                    measurement = await self._measure()
                except LogUnavailable:
                    if known is None:
                        raise
                    return
                if not measurement.is_steady:
                    continue
                known = LogTime.after(known, measurement)
                self._accept(known, measurement.after)
                if known.shown.error <= PRECISE_S:
                    return
            if known is None:
                raise LogUnavailable("The clock of this machine was set while the log's clock was read. Read it again.")

    def _known(self) -> LogTime | None:
        """Return the measured time, unless the wall clock jumped since."""
        return None if abs(self._read().jump_since(self._checked)) > MAX_JUMP_S else self._time

    def _read(self) -> Reading:
        return Reading(self.clock.now(), self.clock.monotonic())

    async def _measure(self) -> Measurement:
        before = self._read()
        log = await self._log.now()
        return Measurement(before, log, self._read())

    def _accept(self, time: LogTime, reading: Reading) -> None:
        """Judge the clock by what is known now, and log a changed judgement."""
        offset = time.offset(reading)
        is_within = offset.least <= (LIMIT_S if self._is_within else AGAIN_S)
        if is_within != self._is_within:
            fields = {"offset_s": round(offset.middle, 3), "error_s": round(offset.error, 3), "limit_s": LIMIT_S}
            if is_within:
                _log.info("clock is credible again", action="clock-credible", **fields)
            else:
                _log.warning("clock is not credible; leading nothing", action="clock-not-credible", **fields)
        self._time, self._checked, self._offset, self._is_within = time, reading, offset, is_within
        _clock_offset.set(offset.middle)
