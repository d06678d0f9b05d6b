"""Removal of reports that prove no claim, as soon as the stream of reports fills.

Any worker may store them, and the server limits the stream as a whole: it then refuses the reports of honest workers too, which send them
again. No stage decides on what is removed. Of the messages under one subject, which only the worker of a claim can name, the
newest stay. Messages are removed by their sequences: as the filter of a purge, a subject with a wildcard would match reports of others.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from ...engine.report_authentication import authentic_subject
from ...ports import EventLog, StoredLog, StoredMessage
from ...subjects import Stream

INTERVAL_S: Final = 1.0
"""Time between two looks at the stream, while there is nothing to remove."""
SHARE: Final = 4
"""The stream is swept while it holds more than this part of its limit, because a removal costs more than the message did."""
KEPT: Final = 16
"""Messages under one subject that stay: a worker stores one, and stages repeat few."""
AT_ONCE: Final = 200


class UnprovenReports:
    """Makes room in the stream of reports."""

    def __init__(self, log: EventLog, streams: StoredLog, key: bytes, *, limit: int) -> None:
        """`limit`: the bytes that the stream may hold; -1: any number, so nothing is removed."""
        self._log = log
        self._streams = streams
        self._key = key
        self._limit = limit
        self._swept = 0

    async def run_once(self) -> int:
        """Remove what proves nothing, if the stream fills; return the number of removed messages.

        Raises:
            LogUnavailable: the log did not answer.
        """
        extent = await self._streams.extent(Stream.REPORTS)
        if self._limit < 0 or extent.size * SHARE < self._limit:
            return 0
        removed = 0
        async for portion in self._streams.messages(Stream.REPORTS, after=self._swept, upto=extent.last):
            unneeded = [*self._unneeded(portion)]
            for first in range(0, len(unneeded), AT_ONCE):
                some = unneeded[first : first + AT_ONCE]
                await asyncio.gather(*(self._log.remove(message.subject, message.sequence) for message in some))
            removed += len(unneeded)
            self._swept = portion[-1].sequence
        return removed

    def _unneeded(self, portion: Sequence[StoredMessage]) -> Iterator[StoredMessage]:
        newest: dict[str, deque[StoredMessage]] = {}
        for message in portion:
            if authentic_subject(message.subject, self._key) is None:
                yield message
                continue
            repeated = newest.setdefault(message.subject, deque())
            repeated.append(message)
            if len(repeated) > KEPT:
                yield repeated.popleft()
