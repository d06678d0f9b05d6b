"""A check that the clock of this machine is not ahead of the log's clock.

A leader must not decide future instants. If a wrong clock moved a job's watermark one day ahead, the job would not run for
a day, because instants before the watermark are never decided again. The log stamps every event with its own time. A leader
whose clock is far ahead of that time decides nothing and logs an error.
"""

from datetime import datetime, timedelta
from typing import Final

from .. import telemetry
from ..ports import Clock, EventLog, LogUnavailable

MAX_AHEAD: Final = timedelta(seconds=10)
"""How far the clock of a leader may be ahead of the log."""
CHECK_INTERVAL_S: Final = 30.0
"""Time after which the log's clock is read again even if the local clocks agree."""
MAX_JUMP_S: Final = 1.0
"""Difference between wall clock and monotonic clock that causes the log's clock to be read at once."""

_log = telemetry.get_logger("tocsin.ticker")


class ClockGuard:
    """Compares the wall clock with the monotonic clock and, less often, with the log's clock."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._checked: tuple[datetime, float] | None = None

    async def is_credible(self, now: datetime) -> bool:
        """Return whether instants up to `now` (UTC) may be decided."""
        monotonic = self._clock.monotonic()
        if self._checked is not None:
            wall_then, monotonic_then = self._checked
            jump = (now - wall_then).total_seconds() - (monotonic - monotonic_then)
            if abs(jump) <= MAX_JUMP_S and monotonic - monotonic_then < CHECK_INTERVAL_S:
                return True
        try:
            ahead = now - await self._log.now()
        except LogUnavailable:
            return False
        if ahead > MAX_AHEAD:
            self._checked = None
            _log.error(
                "clock is ahead of the log; deciding nothing",
                action="clock-ahead",
                seconds=round(ahead.total_seconds(), 1),
            )
            return False
        if ahead < -MAX_AHEAD:
            _log.warning(
                "clock is behind the log; executions start late",
                action="clock-behind",
                seconds=round(-ahead.total_seconds(), 1),
            )
        self._checked = now, monotonic
        return True
