"""What begins goes before what ends: in one process, when a rush begins.

When a thousand jobs are due in one second, each that has run already brings two more messages, on its report and on its end,
and on what the others wait for not one. So when many beginnings come at once, what `low_priority` is taken up when they are over,
or after `PATIENCE`. A rush that lasts longer is a load, and is dealt with in the order in which it comes: nothing waits
twice, and a lone execution waits for nothing.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

MANY: Final = 32
"""Messages at hand that make a rush."""
CALM: Final = 0.02
"""Seconds without one after which it is over: the next batch of beginnings is asked for in that time."""
PATIENCE: Final = 1.0
"""Seconds from its beginning in which others wait for it."""
RECOVERY: Final = 2.0
"""Seconds after the last one before there can be another."""


class PriorityGate:
    """Who goes first among the subscriptions of one process."""

    def __init__(self, *, patience: float = PATIENCE, recovery: float = RECOVERY) -> None:
        """`patience`, `recovery`: in seconds, as above."""
        self._patience = patience
        self._recovery = recovery
        self._at_hand = 0
        self._began = self._calm_since = float("-inf")

    @contextmanager
    def rush(self) -> Iterator[None]:
        """Inside the block many beginnings are at hand."""
        clock = asyncio.get_running_loop().time
        if not self._at_hand and clock() - self._calm_since >= self._recovery:
            self._began = clock()
        self._at_hand += 1
        try:
            yield
        finally:
            self._at_hand -= 1
            self._calm_since = clock()

    async def calm(self) -> None:
        """Return when there is no rush any more, or when that has lasted for too long."""
        while self._is_on(asyncio.get_running_loop().time()):  # noqa: ASYNC110 - the rest of it is quiet, not an event
            await asyncio.sleep(CALM)

    def _is_on(self, now: float) -> bool:
        return now < self._began + self._patience and (self._at_hand > 0 or now - self._calm_since < CALM)


class Turns:
    """One subscription's turns."""

    def __init__(self, precedence: PriorityGate, *, low_priority: bool) -> None:
        """`low_priority`: as its subscription says."""
        self._precedence = precedence
        self._can_wait = low_priority

    async def come(self) -> None:
        """Return when it may take messages up."""
        if self._can_wait:
            await self._precedence.calm()

    def handling(self, messages: int) -> AbstractContextManager[None]:
        """So many are handled inside the block."""
        is_rush = not self._can_wait and messages >= MANY
        return self._precedence.rush() if is_rush else nullcontext()
