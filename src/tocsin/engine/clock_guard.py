"""Whether the clock of this machine may be believed: instants that have not come must not be decided.

A watermark that a runaway clock moved a day ahead would silence its job for a day, for nothing behind it is opened again.
The log has a clock of its own, and every fact its time; a leader that is far ahead of that one waits, and says so.
"""

from datetime import datetime, timedelta
from typing import Final

from .. import telemetry
from ..ports import Clock, EventLog, LogUnavailable

AHEAD: Final = timedelta(seconds=10)
"""How far ahead of the log a leader may be."""
INTERVAL: Final = 30.0
"""Seconds after which the log is asked again, though nothing looks wrong."""
JUMP: Final = 1.0
"""Seconds by which the wall clock may gain on the steady one before the log is asked at once."""

_log = telemetry.get_logger("tocsin.ticker")


class ClockGuard:
    """Compares the wall clock with a steady one at every look, and with the log's now and then."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._checked: tuple[datetime, float] | None = None

    async def is_credible(self, now: datetime) -> bool:
        """Whether `now` (UTC) may be decided on."""
        steady = self._clock.monotonic()
        if self._checked is not None:
            then, since = self._checked
            gained = (now - then).total_seconds() - (steady - since)
            if abs(gained) <= JUMP and steady - since < INTERVAL:
                return True
        try:
            ahead = now - await self._log.now()
        except LogUnavailable:
            return False
        if ahead > AHEAD:
            self._checked = None
            _log.error("this clock is ahead", action="clock-ahead", seconds=round(ahead.total_seconds(), 1))
            return False
        if ahead < -AHEAD:
            _log.warning("this clock is behind", action="clock-behind", seconds=round(-ahead.total_seconds(), 1))
        self._checked = now, steady
        return True
