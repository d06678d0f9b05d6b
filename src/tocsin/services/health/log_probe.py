"""Whether the log answers, for probes of anonymous callers."""

import asyncio
from typing import Final

from ...ports import EventLog, LogUnavailable

VALID_S: Final = 1.0
"""An answer counts this long."""


class LogProbe:
    """Checks that the log answers.

    All callers share one request to the log at a time, and its answer for `VALID_S` seconds. So their number costs the log nothing.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._request: asyncio.Task[bool] | None = None
        self._ended = float("-inf")

    async def is_reached(self) -> bool:
        """Return whether the log answers, or did up to a second ago."""
        request = self._request
        if request is None or (request.done() and asyncio.get_running_loop().time() - self._ended >= VALID_S):
            request = self._request = asyncio.create_task(self._ask())
        return await asyncio.shield(request)  # a caller that leaves does not end the request of the others

    async def _ask(self) -> bool:
        try:
            await self._log.now()
        except LogUnavailable:
            return False
        finally:
            self._ended = asyncio.get_running_loop().time()
        return True
