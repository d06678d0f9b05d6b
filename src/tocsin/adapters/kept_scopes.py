"""Reads from the history of scopes that are in no fold."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

from .. import telemetry
from ..ports import EventHistory, KeptEvent, KeptEvents, KeptPart

PAGE: Final = 1_000
"""About the number of events that are read at once."""

WITHIN_S: Final = 2.0
"""How long a read waits for the history."""
RETRY_AFTER_S: Final = 30.0
"""The time after which a history that failed is read again."""

OpenEvents: TypeAlias = Callable[[], Awaitable[EventHistory | None]]
"""Returns the history of the settings, which is opened once; None: it keeps no events, or cannot be opened."""

_log = telemetry.get_logger("tocsin")


class Kept(NamedTuple):
    """Events that the history has, oldest first."""

    events: list[KeptEvent]
    upto: int
    """The number up to which they are all that were stored."""
    is_page: bool = False
    """Whether there may be more: read on after the last."""


class KeptScopes:
    """Reads events from the history.

    Each method returns None if the history cannot answer: the installation has no history, it does not answer, or it lacks events.
    """

    def __init__(self, history: OpenEvents) -> None:
        self._open = history
        self._not_before = 0.0

    async def events(
        self, *filters: str, after: int = 0, since: datetime | None = None, limit: int | None = None
    ) -> Kept | None:
        """Return events as `EventHistory.events` does."""

        def look(history: EventHistory, part: KeptPart) -> Awaitable[KeptEvents]:
            return history.events(part, after=after, since=since, limit=limit)

        kept = await self._read(filters, look)
        return kept if kept is None or limit is None else kept._replace(is_page=len(kept.events) >= limit)

    async def newest(self, *filters: str) -> Kept | None:
        return await self._read(filters, lambda history, part: history.newest(part))

    async def pages(self, *filters: str, after: int | datetime) -> AsyncGenerator[Kept | None, None]:
        """Yield all events after a number, or from an instant (UTC) on.

        The last page is no `is_page`, or None.
        """
        since = None if isinstance(after, int) else after
        place = after if isinstance(after, int) else 0
        while (page := await self.events(*filters, after=place, since=since, limit=PAGE)) is not None:
            yield page
            if not page.is_page:
                return
            place, since = page.events[-1].sequence, page.events[-1].time
        yield None

    async def _read(
        self, filters: tuple[str, ...], look: Callable[[EventHistory, KeptPart], Awaitable[KeptEvents]]
    ) -> Kept | None:
        if (part := KeptPart.of(*filters)) is None:
            return None
        if monotonic() < self._not_before:
            return None
        try:
            async with asyncio.timeout(WITHIN_S):
                if (history := await self._open()) is None:
                    return None
                kept = await look(history, part)
        except Exception as error:  # noqa: BLE001 - any error of the database's client; the log has the events too
            self._not_before = monotonic() + RETRY_AFTER_S
            _log.warning("history not read; reading the log", action="history-not-read", error=repr(error))
            return None
        return Kept([*kept.events], kept.upto) if kept.is_whole else None
