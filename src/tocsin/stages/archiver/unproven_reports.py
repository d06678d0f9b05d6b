"""Removal of reports that prove no claim, as soon as the stream of reports fills.

Any worker may store them, and the server limits the stream as a whole: it then refuses the reports of honest workers too, which send them
again. No stage decides on what is removed. Of the messages under one subject, which only the worker of a claim can name, the
newest stay. Messages are removed by their sequences: as the filter of a purge, a subject with a wildcard would match reports of others.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from ...engine.report_lists import authentic_subject
from ...ports import EventLog, StoredLog, StoredMessage
from ...subjects import Stream

INTERVAL_S: Final = 1.0
"""Time between two looks at the stream, while there is nothing to remove."""
SHARE: Final = 4
"""The stream is swept while it holds more than this part of its limit, because a removal costs more than the message did."""
KEPT: Final = 16
"""Messages under one subject that stay: a worker stores one, and stages repeat few."""
REMEMBERED: Final = 100_000
"""Subjects of claims that are remembered. A worker must have this many others stored meanwhile, before it can leave `KEPT` messages more."""
AT_ONCE: Final = 200


class UnprovenReports:
    """Makes room in the stream of reports."""

    def __init__(
        self, log: EventLog, streams: StoredLog, key: bytes, *, limit: int, remembered: int = REMEMBERED
    ) -> None:
        """`limit`: the bytes that the stream may hold; -1: any number, so nothing is removed."""
        self._log = log
        self._streams = streams
        self._key = key
        self._limit = limit
        self._remembered = remembered
        self._swept = 0
        self._newest = OrderedDict[str, tuple[int, ...]]()
        """The sequences of the messages that stay under each subject, the subject with the newest message last."""

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
            unneeded, newest = self._examined(portion)
            for first in range(0, len(unneeded), AT_ONCE):
                some = unneeded[first : first + AT_ONCE]
                await asyncio.gather(*(self._log.remove(subject, sequence) for subject, sequence in some))
            removed += len(unneeded)
            self._swept = portion[-1].sequence
            self._remember(newest)
        return removed

    def _examined(self, portion: Sequence[StoredMessage]) -> tuple[list[tuple[str, int]], dict[str, tuple[int, ...]]]:
        """Return the messages to remove, and the sequences that stay of each subject."""
        unneeded, newest = list[tuple[str, int]](), dict[str, tuple[int, ...]]()
        for message in portion:
            subject = message.subject
            if authentic_subject(subject, self._key) is None:
                unneeded.append((subject, message.sequence))
                continue
            before = newest.pop(subject, None) or self._newest.get(subject, ())
            if len(before) == KEPT:
                unneeded.append((subject, before[0]))
            newest[subject] = (*before, message.sequence)[-KEPT:]
        return unneeded, newest

    def _remember(self, newest: dict[str, tuple[int, ...]]) -> None:
        for subject, sequences in newest.items():
            self._newest[subject] = sequences
            self._newest.move_to_end(subject)
        while len(self._newest) > self._remembered:
            self._newest.popitem(last=False)
