"""How many tasks may run at once."""

import asyncio

from .flag import Flag


class Slots:
    """A number of slots, each free or in use. From the moment that `closed` is up none is given out any more."""

    def __init__(self, limit: int, closed: Flag) -> None:
        """All free."""
        self._free = limit
        self._closed = closed
        self._changed = asyncio.Event()

    async def free(self) -> int:
        """How many are free: waits for the first; 0: closed."""
        while not self._free and not self._closed.is_set():
            self._changed.clear()
            await self._changed.wait()
        return 0 if self._closed.is_set() else self._free

    async def occupy(self) -> bool:
        """Use a slot: waits for a free one. False: closed."""
        if not await self.free():
            return False
        self._free -= 1
        return True

    def release(self) -> None:
        """A slot is free again."""
        self._free += 1
        self._changed.set()

    def wake(self) -> None:
        """Let those that wait see that the slots are closed."""
        self._changed.set()
