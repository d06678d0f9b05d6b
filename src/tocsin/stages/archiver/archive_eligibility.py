"""The messages that may leave the streams now: handled, recorded, and old or too many.

Every durable must have handled a message, and the history must have recorded it, in all streams: an undecided message of
one stream may still need a message of another. Time is what the streams share. Therefore no message is archived that
is younger than the oldest undecided message of any stream, less what the clocks of the streams' leaders may differ by.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from ...archive.segment_selection import SegmentSelection
from ...ports import EventLog, History, StoredLog, StoredMessage, StreamPurge
from ...subjects import STREAMS, Stream
from .log_archiver import Keeping

CLOCK_SKEW: Final = timedelta(seconds=10)
"""The most by which the clocks of the streams' leaders may differ."""
MAX_KEYS: Final = 10_000
"""The most unique keys that leave the log with a segment."""
PORTION: Final = 50_000
"""The approximate number of messages of a segment; they are held in memory meanwhile."""


class ArchiveEligibility:
    """Selects the messages to archive."""

    def __init__(
        self,
        streams: StoredLog,
        housekeeping: StreamPurge,
        history: History,
        *,
        log: EventLog,
        keeping: Keeping,
        recorded: Mapping[Stream, Sequence[str]],
    ) -> None:
        """`log` says which executions it still has.

        `recorded`: the subject filters of the history's recorder for each stream that it records.
        """
        self._streams = streams
        self._housekeeping = housekeeping
        self._history = history
        self._log = log
        self._keeping = keeping
        self._recorded = recorded

    async def look(
        self, before: Mapping[Stream, int], now: datetime
    ) -> tuple[list[StoredMessage], Mapping[Stream, int], bool]:
        """Return the messages to archive, the settled sequence of each stream, and whether more remain.

        `before`: the sequence up to which each stream was settled already.

        Raises:
            LogUnavailable: the log did not answer.
            HistoryUnavailable: the history's database did not answer.
        """
        sequences = {stream: await self._decided(stream) for stream in STREAMS}
        # An undecided message of one stream may still need a message of another stream.
        undecided = [at - CLOCK_SKEW for _, at in sequences.values() if at is not None]
        latest = min([now - self._keeping.least, *undecided])
        messages: list[StoredMessage] = []
        upto, is_more = dict(before), False
        for stream, (last, _) in sequences.items():
            found, at, ended = await self._portion(stream, before.get(stream, 0), last, latest, now)
            messages += found
            upto[stream] = max(at, before.get(stream, 0))
            is_more = is_more or not ended
        return messages, upto, is_more

    async def _decided(self, stream: Stream) -> tuple[int, datetime | None]:
        """Return the last settled sequence, and when the next message was stored.

        Everything up to that sequence is decided, and recorded in the history.
        """
        last = await self._housekeeping.decided(stream)
        end = (await self._streams.extent(stream)).last
        filters = self._recorded.get(stream)
        # The history's place moves only with recorded messages.
        if filters and (missing := await self._first(stream, filters, await self._history.offset(stream), end)):
            last = min(last, missing.sequence - 1)
        following = await self._first(stream, (), last, end)
        return last, None if following is None else following.time

    async def _first(self, stream: Stream, filters: Sequence[str], after: int, upto: int) -> StoredMessage | None:
        async for portion in self._streams.messages(stream, *filters, after=after, upto=upto):
            return portion[0]
        return None

    async def _portion(
        self, stream: Stream, before: int, last: int, latest: datetime, now: datetime
    ) -> tuple[list[StoredMessage], int, bool]:
        """Return the messages to archive, the last sequence examined, and whether the stream is exhausted."""
        selection, at, is_ended = await self._taken(stream, before, last, latest, now)
        await self._release_keys(selection)
        return selection.selected(), at, is_ended

    async def _release_keys(self, selection: SegmentSelection) -> None:
        """Select the unique keys whose executions have all left the log, or leave it now."""
        idle = list(islice(selection.idle_keys(), MAX_KEYS))
        scopes = list(dict.fromkeys(scope for _, absent in idle for scope in absent))
        tails = dict(zip(scopes, await self._log.tails(*scopes), strict=True))
        for message, absent in idle:
            if not any(tails[scope] for scope in absent):
                selection.release(message)

    async def _taken(
        self, stream: Stream, before: int, last: int, latest: datetime, now: datetime
    ) -> tuple[SegmentSelection, int, bool]:
        selection, at, new = SegmentSelection(), before, 0
        extent = await self._streams.extent(stream)
        async for portion in self._streams.messages(stream, after=0, upto=last):
            for message in portion:
                is_old = message.time <= now - self._keeping.hot_window
                is_too_much = self._keeping.is_too_much(stream, extent, selection.size)
                if message.time > latest or not (is_old or is_too_much):
                    return selection, at, True
                if new >= PORTION:
                    return selection, at, False
                selection.take(message)
                new += message.sequence > before
                at = max(at, message.sequence)
        return selection, at, True
