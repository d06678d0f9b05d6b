"""Signs of life for a monitor outside: a dead man's switch.

Only the leading ticker sends them, and only while it decides on time and the log stores its decisions. A monitor that hears
nothing for longer than its period therefore knows of every reason: no process, no leader, no majority, a full disk.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from .. import telemetry
from ..ports import Clock

LOOK_INTERVAL_S: Final = 1.0
"""How often the conditions are checked, so that a new leader sends at once."""
MAX_SILENCE_S: Final = 10.0
"""How long ago the last clean pass of the ticker may be."""

Ping: TypeAlias = Callable[[], Awaitable[None]]
"""Sends one sign of life; raises any exception if the monitor did not accept it."""

_log = telemetry.get_logger("tocsin.heartbeat")


class Heartbeat:
    """Sends signs of life as long as the ticker reports clean passes."""

    def __init__(self, ping: Ping, clock: Clock, *, every: float) -> None:
        """`every`: seconds between two signs."""
        self._ping = ping
        self._clock = clock
        self._every = every
        self._well_at = float("-inf")
        self._sent_at = float("-inf")
        self._is_heard = True

    def pass_ended(self, *, is_clean: bool) -> None:
        """Note a pass of the ticker over all due jobs.

        `is_clean`: the log stored every decision.
        """
        if is_clean:
            self._well_at = self._clock.monotonic()

    async def run(self, is_leading: Callable[[], bool]) -> None:
        """Send signs of life until cancelled."""
        while True:
            await self.run_once(is_leading=is_leading())
            await self._clock.sleep(LOOK_INTERVAL_S)

    async def run_once(self, *, is_leading: bool) -> None:
        """Send a sign of life if it is time, and everything is well."""
        now = self._clock.monotonic()
        if not is_leading or now - self._well_at > MAX_SILENCE_S or now - self._sent_at < self._every:
            return
        self._sent_at = now
        try:
            await self._ping()
        except Exception as error:  # noqa: BLE001 - jobs go on without a monitor
            if self._is_heard:
                _log.warning("heartbeat not accepted", action="heartbeat-failed", error=type(error).__name__)
            self._is_heard = False
        else:
            if not self._is_heard:
                _log.info("heartbeat accepted again", action="heartbeat-accepted")
            self._is_heard = True
