"""Waking whoever waits for a change."""

import asyncio


class Signal:
    """Each `notify` ends every `wait` that began before it, in the order in which they began."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next notification."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def notify(self) -> None:
        """Wake them."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
