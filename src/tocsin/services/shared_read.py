"""A read that callers share, so that their number costs the server nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

VALID_S: Final = 1.0
"""An answer counts this long by default (seconds)."""


class SharedRead(Generic[T]):
    """One read at a time, whose answer counts for a time.

    A failure counts for the callers that waited for it.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], *, valid_s: float | None = None) -> None:
        """`valid_s`: the seconds for which an answer counts; None: `VALID_S`."""
        self._read = read
        self._valid_s = valid_s
        self._request: asyncio.Task[T] | None = None
        self._ended = float("-inf")

    async def answer(self) -> T:
        """Return what was read, up to `valid_s` seconds ago."""
        request = self._request
        if request is None or (request.done() and not self._counts(request)):
            request = self._request = asyncio.create_task(self._ask())
            request.add_done_callback(_retrieve)
        return await asyncio.shield(request)  # a caller that leaves does not end the request of the others

    def _counts(self, ended: asyncio.Task[T]) -> bool:
        valid_s = VALID_S if self._valid_s is None else self._valid_s
        is_answer = not ended.cancelled() and ended.exception() is None
        return is_answer and asyncio.get_running_loop().time() - self._ended < valid_s

    async def _ask(self) -> T:
        try:
            return await self._read()
        finally:
            self._ended = asyncio.get_running_loop().time()


def _retrieve(request: asyncio.Task[T]) -> None:
    """Retrieve a failure, which asyncio logs otherwise if each caller left before it."""
    if not request.cancelled():
        request.exception()
