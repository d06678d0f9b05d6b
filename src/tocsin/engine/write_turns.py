"""Turns of the writers of commits, so that no slow process is refused forever.

All appends have the same guard, so the fastest writer wins. After three refusals in a row, a process requests that the others hold back for a moment.
A request may be lost, and may come from any user of the channel, so it costs the others little.
"""

from collections.abc import Callable
from typing import Final

from .. import telemetry
from ..ports import Clock, LogUnavailable
from ..ports.commit_log import TurnChannel

REFUSALS: Final = 3
"""Refusals in a row after which a process requests its turn."""
HOLD_BACK_S: Final = 0.05
"""How long the others hold back."""
ONCE_IN_S: Final = 1.0
"""The time in which a process gets one turn."""
LOOK_S: Final = 0.005
"""How often a process that holds back looks whether the turn is over."""
CLOCK_S: Final = 0.001
"""Less is no time to wait for."""
MAX_ASKS: Final = 16
"""Processes that may wait for their turns."""
MAX_NAMES: Final = 100
"""The most processes with remembered turns."""

_NEVER: Final = float("-inf")

_log = telemetry.get_logger("tocsin.engine")


class WriteTurns:
    """The turns of one process among others."""

    def __init__(self, name: str, clock: Clock, channel: TurnChannel | None = None) -> None:
        """`channel`: None: there are no others."""
        self._name = name
        self._clock = clock
        self._channel = channel
        self._refusals = 0
        self._asked_at = self._waits_until = self._until = self._free_at = _NEVER
        self._holder = ""
        """The process that has its turn."""
        self._asks: dict[str, float] = {}
        """The times of requests of processes that did not get their turns yet, the oldest first."""
        self._given: dict[str, float] = {}
        """When each process got its last turn, the oldest first."""

    def take(self, name: str) -> None:
        """Note that a process requests its turn."""
        now = self._clock.monotonic()
        if name != self._name and now >= self._given.get(name, _NEVER) + ONCE_IN_S and len(self._asks) < MAX_ASKS:
            self._asks.setdefault(name, now)

    async def hold_back(self, look: Callable[[], None]) -> None:
        """Wait while another process has its turn. `look` folds the commits that were stored meanwhile."""
        while (name := self._due()) is not None:
            begin = self._clock.monotonic()
            self._holder, self._until = name, begin + HOLD_BACK_S
            while (rest := self._until - self._clock.monotonic()) >= CLOCK_S:
                await self._clock.sleep(min(rest, LOOK_S))
                look()
            end = self._clock.monotonic()
            self._free_at = end + (end - begin)  # others get half of the time at most

    def _due(self) -> str | None:
        """Return the process that has its turn now, and note that it gets its turn."""
        now = self._clock.monotonic()
        self._asks = {name: at for name, at in self._asks.items() if now < at + ONCE_IN_S}
        is_waiting = now < self._waits_until
        name = next((name for name in self._asks if not is_waiting or name < self._name), None)
        if name is None or now < self._free_at:
            return None
        del self._asks[name]
        self._given.pop(name, None)
        self._given[name] = now
        while len(self._given) > MAX_NAMES:
            del self._given[next(iter(self._given))]
        return name

    def seen(self, writer: str) -> None:
        """Note that a process stored a commit: its turn is over."""
        if writer == self._holder:
            self._holder, self._until = "", _NEVER

    async def refused(self) -> None:
        """Note that a commit was refused; ask for a turn if it is time."""
        self._refusals += 1
        now = self._clock.monotonic()
        if self._refusals < REFUSALS or self._channel is None or now < self._asked_at + ONCE_IN_S:
            return
        self._asked_at, self._waits_until = now, now + HOLD_BACK_S
        try:
            await self._channel.ask(self._name)
        except LogUnavailable as error:
            _log.info("no turn can be requested", action="turn-not-requested", error=str(error))

    def stored(self) -> None:
        """Note that a commit was stored: this process had its turn."""
        self._refusals = 0
        self._waits_until = _NEVER
