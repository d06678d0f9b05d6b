"""What is ripe for the archive now: decided, recorded, and old enough, or too much.

Every durable must have dealt with it, and the history recorded it, in both streams: what is undecided in the one may still
have to look at what belongs to it in the other. So time is what the two have in common, and nothing is ripe that is younger
than the oldest undecided message of either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...archive.segment_selection import SegmentSelection
from ...ports import History, StoredLog, StoredMessage, StreamPurge
from ...subjects import Stream

PORTION: Final = 50_000
"""Messages that a segment is made of, about; they are held in memory meanwhile."""

STREAMS: Final = (Stream.LOG, Stream.LEDGER)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much is kept. In the streams: what is younger than `hot_window`, unless they hold more than `max_messages`.

    Nothing younger than `least` ever leaves them. In the history: what has not been over for `history` or longer.
    """

    hot_window: timedelta
    max_messages: int
    history: timedelta
    least: timedelta = timedelta(minutes=2)
    interval: float = 300.0
    """Seconds between two looks."""
    settling: float = 2.0
    """Seconds between telling what was dealt with and taking it out of the streams: whoever remembers that it was less
    (`archive.cursors.KEPT`) has asked anew by then, and whoever handles something of it has done so."""


class ArchiveEligibility:
    """Looks through the streams."""

    def __init__(
        self,
        streams: StoredLog,
        housekeeping: StreamPurge,
        history: History,
        *,
        keeping: Keeping,
        recorded: Mapping[Stream, Sequence[str]],
    ) -> None:
        """`recorded`: the filters over what the history records of each stream."""
        self._streams = streams
        self._housekeeping = housekeeping
        self._history = history
        self._keeping = keeping
        self._recorded = recorded

    async def look(
        self, before: Mapping[Stream, int], now: datetime
    ) -> tuple[list[StoredMessage], Mapping[Stream, int], bool]:
        """What is to be archived, up to which sequence that settles each stream, and whether there is more.

        `before`: up to where each was settled already.

        Raises:
            LogUnavailable: the log did not answer; or whatever the history raises.
        """
        decided = {stream: await self._decided(stream) for stream in STREAMS}
        # What is not decided in one stream may still have to look at what belongs to it in the other.
        latest = min([now - self._keeping.least, *[at for _, at in decided.values() if at is not None]])
        found: list[StoredMessage] = []
        upto, is_more = dict(before), False
        for stream, (last, _) in decided.items():
            ripe, at, ended = await self._portion(stream, before.get(stream, 0), last, latest, now)
            found += ripe
            upto[stream] = max(at, before.get(stream, 0))
            is_more = is_more or not ended
        return found, upto, is_more

    async def _decided(self, stream: Stream) -> tuple[int, datetime | None]:
        """Up to where all is decided and recorded in a stream, and when the first message behind that was stored."""
        last = await self._housekeeping.decided(stream)
        end = (await self._streams.extent(stream)).last
        # The history's place only moves with what it records.
        if missing := await self._first(stream, self._recorded[stream], await self._history.offset(stream), end):
            last = min(last, missing.sequence - 1)
        behind = await self._first(stream, (), last, end)
        return last, None if behind is None else behind.time

    async def _first(self, stream: Stream, filters: Sequence[str], after: int, upto: int) -> StoredMessage | None:
        async for portion in self._streams.messages(stream, *filters, after=after, upto=upto):
            return portion[0]
        return None

    async def _portion(
        self, stream: Stream, before: int, last: int, latest: datetime, now: datetime
    ) -> tuple[list[StoredMessage], int, bool]:
        """The ripe messages of a stream, up to which sequence it was looked through, and whether that is all."""
        harvest, at, new = SegmentSelection(), before, 0
        held = (await self._streams.extent(stream)).messages
        async for portion in self._streams.messages(stream, after=0, upto=last):
            for message in portion:
                is_old = message.time <= now - self._keeping.hot_window
                is_too_much = held - harvest.size > self._keeping.max_messages
                if message.time > latest or not (is_old or is_too_much):
                    return harvest.ripe(), at, True
                if new >= PORTION:
                    return harvest.ripe(), at, False
                harvest.take(message)
                new += message.sequence > before
                at = max(at, message.sequence)
        return harvest.ripe(), at, True
