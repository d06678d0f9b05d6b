"""The events that the history keeps, for a process without states.

The history is opened at the first read, since most commands read nothing from it. It is never made here: a process on another host than the recorder
has no file, and reads the log.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from ..adapters.history.factory import open_history
from ..ports import EventHistory
from ..settings import Settings

SQLITE: Final = "sqlite:///"
MAX_CONNECTIONS: Final = 2


class KeptEvents:
    """Opens the history once."""

    def __init__(self, settings: Settings, identity: Callable[[], Awaitable[str]]) -> None:
        """`identity`: returns the public identifier of the installation that has the events."""
        self._url = settings.database.url
        self._identity = identity
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._history: EventHistory | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[], Awaitable[EventHistory | None]]]:
        """Yield the opener of the history; close the history at the end of the block."""
        async with self._stack:
            yield self._open

    async def _open(self) -> EventHistory | None:
        async with self._opening:
            if self._history is None and self._exists():
                self._history = await self._opened()
            return self._history

    def _exists(self) -> bool:
        return not self._url.startswith(SQLITE) or Path(self._url.removeprefix(SQLITE)).exists()

    async def _opened(self) -> EventHistory | None:
        installation = await self._identity()
        opening = open_history(self._url, installation=installation, max_connections=MAX_CONNECTIONS)
        history = await self._stack.enter_async_context(opening)
        return history if isinstance(history, EventHistory) else None
