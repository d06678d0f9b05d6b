"""A signal that wakes waiting tasks."""

import asyncio


class Signal:
    """Each `notify` ends all earlier calls of `wait`, in their order."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next notification."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def notify(self) -> None:
        """Wake all waiting tasks."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
