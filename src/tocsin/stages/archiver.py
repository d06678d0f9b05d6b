"""Archiver: takes what is over out of the log, into the archive, and out of the history what nobody wants to see any more.

reads     both streams, up to where every durable and the history have dealt with everything, and it is old enough
writes    segments of the archive, the cursors behind which durables begin, and then purges

In this order, and each step can be repeated: objects, the archive's own state (with it they count), cursors, purges, and that
they are done. Whoever leads next finishes what the one before it left undone, before it begins anything of its own.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from ..ports import (
    Clock,
    History,
    Housekeeping,
    LogUnavailable,
    SequenceConflict,
    StoredLog,
    StoredMessage,
)
from ..records.archive import Archive, Origin, Segment, State
from ..records.harvest import FILTERS, Harvest, purges
from ..stage import Access, Stage
from ..subjects import ARCHIVE_STATE, ARCHIVER_LEASE, Bucket, Stream, cursor
from .leadership import Leadership

PORTION: Final = 50_000
"""Messages that a segment is made of, about; they are held in memory meanwhile."""
PURGES_AT_ONCE: Final = 256

STREAMS: Final = tuple(FILTERS)
ACCESS: Final = Access(
    follows=STREAMS,
    writes=(
        (Bucket.LEADER, ARCHIVER_LEASE),
        (Bucket.CURSORS, ARCHIVE_STATE),
        *((Bucket.CURSORS, cursor(stream)) for stream in STREAMS),
    ),
    keeps_archive=True,
)

_log = structlog.get_logger("tocsin.archiver")


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


class Archiver:
    """Works for as long as it leads."""

    def __init__(  # noqa: PLR0913 - each is one thing that it works on
        self,
        streams: StoredLog,
        housekeeping: Housekeeping,
        archive: Archive,
        history: History,
        leadership: Leadership,
        clock: Clock,
        *,
        origin: Origin,
        keeping: Keeping,
        recorded: Mapping[Stream, Sequence[str]],
    ) -> None:
        """`recorded`: the filters over what the history records of each stream."""
        self._streams = streams
        self._housekeeping = housekeeping
        self._archive = archive
        self._history = history
        self._leadership = leadership
        self._clock = clock
        self._origin = origin
        self._keeping = keeping
        self._recorded = recorded

    async def run(self) -> None:
        """Archive and forget, for ever. Trouble costs time only: all that is not done is found again."""
        while True:
            try:
                while self._leadership.is_leading and await self.run_once(self._clock.now()):
                    pass
            except (LogUnavailable, SequenceConflict) as error:
                _log.info("not archived", action="archiver-waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 - whatever ails the archive or a database may be over in a moment
                _log.warning("not archived", action="archiver-failed", exc_info=error)
            await self._clock.sleep(self._keeping.interval)

    async def run_once(self, now: datetime) -> bool:
        """Finish what was begun, archive one portion, forget some of the history; whether there may be more to do.

        Raises:
            SequenceConflict: another archiver was faster.
            LogUnavailable: the log did not answer; or whatever the archive's store and the history raise.
        """
        state, revision = await self._archive.state()
        if state.head != state.purged or not await self._archive.is_told(state):
            state, revision = await self._finish(state, revision)
        found, upto, is_more = await self._ripe(state, now)
        if upto != state.upto:
            head: Segment | None = await self._archive.write(found, state, upto, self._origin) if found else None
            changes = {} if head is None else {"head": head.name, "number": head.number}
            state = state.model_copy(update={"upto": upto, **changes})
            revision = await self._archive.move(state, expect=revision)
            await self._finish(state, revision)
        forgotten = await self._history.expire(now, after=self._keeping.history)
        return is_more or forgotten > 0

    async def _finish(self, state: State, revision: int) -> tuple[State, int]:
        """Tell where durables begin, and take out of the streams what the newest segment holds."""
        await self._archive.tell(state)
        if state.head is None or state.head == state.purged:
            return state, revision
        segment = await self._archive.segment(state.head)
        wanted = list(purges(await self._archive.messages(segment)))
        for i in range(0, len(wanted), PURGES_AT_ONCE):
            some = wanted[i : i + PURGES_AT_ONCE]
            await asyncio.gather(*(self._housekeeping.purge(subject, upto=upto) for subject, upto in some))
        state = state.model_copy(update={"purged": state.head})
        revision = await self._archive.move(state, expect=revision)
        _log.info("archived", action="archived", segment=segment.name, executions=segment.executions)
        return state, revision

    async def _ripe(self, state: State, now: datetime) -> tuple[list[StoredMessage], Mapping[Stream, int], bool]:
        """What is to be archived, up to which sequence of each stream that decides, and whether there is more."""
        decided = {stream: await self._decided(stream) for stream in STREAMS}
        # What is not decided in one stream may still have to look at what belongs to it in the other.
        latest = min([now - self._keeping.least, *[at for _, at in decided.values() if at is not None]])
        found: list[StoredMessage] = []
        upto, is_more = dict(state.upto), False
        for stream, (last, _) in decided.items():
            ripe, at, ended = await self._portion(stream, state.upto.get(stream, 0), last, latest, now)
            found += ripe
            upto[stream] = max(at, state.upto.get(stream, 0))
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
        harvest, at, new = Harvest(), before, 0
        held = (await self._streams.extent(stream)).messages
        async for portion in self._streams.messages(stream, *FILTERS[stream], after=0, upto=last):
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


def archiver(it: Archiver, leadership: Leadership) -> Stage:
    """One archiver and its candidature."""
    return Stage("archiver", loops=(leadership.run, it.run), access=ACCESS)
