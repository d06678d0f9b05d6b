"""A read that callers share, so that their number costs the server nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

VALID_S: Final = 1.0
"""An answer counts this long."""


class SharedRead(Generic[T]):
    """One read at a time, whose answer counts for `VALID_S` seconds."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._request: asyncio.Task[T] | None = None
        self._ended = float("-inf")

    async def answer(self) -> T:
        """Return what was read, up to a second ago."""
        request = self._request
        if request is None or (request.done() and asyncio.get_running_loop().time() - self._ended >= VALID_S):
            request = self._request = asyncio.create_task(self._ask())
        return await asyncio.shield(request)  # a caller that leaves does not end the request of the others

    async def _ask(self) -> T:
        try:
            return await self._read()
        finally:
            self._ended = asyncio.get_running_loop().time()
