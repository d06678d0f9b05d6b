"""Feeds of stored events: readers of the same events share a follower of the log.

Each reader has a bounded buffer. A reader that is too slow is dropped, so that it neither takes memory nor delays others. It can
continue from the position of the last event that it received: events before the position of the feed are read from the log.

Such readers take turns, so that however many of them there are, the event loop has other work done in between. While a reader waits
for its client, it has no turn and no open follower.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import msgspec

from ..domain.errors import TocsinError
from ..domain.events import Message, Recorded
from ..ports import EventLog
from ..subjects import DecodeError, Stream, decode, stream_of
from . import tail

MAX_BUFFERED: Final = 2_000
"""Events that wait for one reader."""
MAX_TURNS: Final = 4
"""Readers that read older events, or write a portion, at the same time."""
OLDER_AT_ONCE: Final = 1_000
"""Older events that a reader reads in its turn, undecoded. It may exceed them by a batch of the log."""
PORTION: Final = 100
"""Events that are decoded or written in a turn."""


class TooManyReaders(TocsinError):
    """As many readers as the server allows follow events."""

    code = "too-many-readers"


@dataclass(slots=True)
class FeedEvent:
    """An event, and the position in both streams after it."""

    recorded: Recorded[Message]
    places: Mapping[Stream, int]
    frame: bytes = b""
    """The event as readers receive it, once one of them needed it."""


class _Undecoded(NamedTuple):
    """A message of the log that is decoded in a turn of its own."""

    subject: str
    body: bytes


class _Reader:
    """The events that wait for one reader."""

    def __init__(self) -> None:
        self.events: list[FeedEvent] = []
        self.arrived = asyncio.Event()
        self.is_dropped = False
        self.error: Exception | None = None

    def put(self, event: FeedEvent) -> None:
        if self.is_dropped:
            return
        if len(self.events) >= MAX_BUFFERED:
            self.is_dropped = True
            self.events.clear()
        else:
            self.events.append(event)
        self.arrived.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.arrived.set()

    async def take(self) -> list[FeedEvent]:
        """Return the events that have arrived; wait for the first."""
        await self.arrived.wait()
        self.arrived.clear()
        if self.error is not None:
            raise self.error
        taken, self.events = self.events, []
        return taken


class _Feed:
    """The events of one job or of all jobs, from its start on."""

    def __init__(self, log: EventLog, job: str | None) -> None:
        self._log = log
        self._job = job
        self.users = 0
        self.readers: set[_Reader] = set()
        self.at: dict[Stream, int] = {}
        self._start = asyncio.ensure_future(tail.newest(log, job, public=True))
        self._task = asyncio.create_task(self._run())

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def started(self) -> None:
        """Wait until the position of the feed is known."""
        await asyncio.shield(self._start)
        await asyncio.sleep(0)  # `_run` takes the position first

    async def close(self) -> None:
        for task in (self._start, self._task):
            task.cancel()
        await asyncio.gather(self._start, self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            self.at = dict(await asyncio.shield(self._start))
            follower = tail.follow(self._log, self._job, after=dict(self.at), public=True)
            async with aclosing(follower):
                async for recorded in follower:
                    self.at[stream_of(recorded.subject)] = recorded.sequence
                    event = FeedEvent(recorded, dict(self.at))
                    for reader in self.readers:
                        reader.put(event)
        except Exception as error:  # noqa: BLE001 - raised again in the readers' tasks
            for reader in self.readers:
                reader.fail(error)


class EventFeeds:
    """The feeds of one server."""

    def __init__(self, log: EventLog, most: int | None = None, most_of_caller: int | None = None) -> None:
        """Allow at most `most` readers, and `most_of_caller` of each caller; None: any number.

        Readers that are bound to the same namespaces may be half of them.
        """
        self._log = log
        self._most = most
        self._most_of_caller = most_of_caller
        self.turn = asyncio.Semaphore(MAX_TURNS)
        """Permits work that takes milliseconds for each reader."""
        self._feeds: dict[str | None, _Feed] = {}
        self._readers = Counter[frozenset[str] | None]()
        """The readers by the namespaces to which they are bound."""
        self._callers = Counter[str]()

    @contextmanager
    def place(self, caller: str = "", namespaces: frozenset[str] | None = None) -> Iterator[None]:
        """Hold a reader's place for a caller within the block.

        `namespaces`: those to which the caller is bound.

        Raises:
            TooManyReaders: the limit is reached.
        """
        for held, most, readers in (
            (self._callers[caller], self._most_of_caller, "streams of this caller"),
            (self._readers.total(), self._most, "clients"),
            (
                self._readers[namespaces],
                None if self._most is None or namespaces is None else max(1, self._most // 2),
                "clients of these namespaces",
            ),
        ):
            if most is not None and held >= most:
                raise TooManyReaders(f"{most:,} {readers} follow events already. Close some, or retry later")
        self._readers[namespaces] += 1
        self._callers[caller] += 1
        try:
            yield
        finally:
            self._readers -= Counter([namespaces])  # keeps no count of zero
            self._callers -= Counter([caller])

    async def follow(
        self, job: str | None, after: Mapping[Stream, int] | None = None
    ) -> AsyncGenerator[Sequence[FeedEvent], None]:
        """Yield events after a position, by default from now on.

        They end when the reader is too slow.
        """
        feed = self._feeds.get(job)
        if feed is None or feed.has_ended:
            feed = self._feeds[job] = _Feed(self._log, job)
        feed.users += 1
        reader = _Reader()
        try:
            await feed.started()
            at = dict(feed.at if after is None else after)
            while sum(max(0, feed.at[stream] - at.get(stream, 0)) for stream in feed.at) > MAX_BUFFERED // 2:
                async for events in self._older(job, at, dict(feed.at)):
                    yield events
            target = dict(feed.at)
            feed.readers.add(reader)  # from here on events wait in the buffer
            async for events in self._older(job, at, target):
                yield events
            while not (reader.is_dropped or feed.has_ended):
                if new := [event for event in await reader.take() if _is_after(event.recorded, at)]:
                    yield new
        finally:
            feed.readers.discard(reader)
            feed.users -= 1
            if not feed.users:
                if self._feeds.get(job) is feed:
                    del self._feeds[job]
                await feed.close()

    async def _older(
        self, job: str | None, at: dict[Stream, int], target: Mapping[Stream, int]
    ) -> AsyncGenerator[Sequence[FeedEvent], None]:
        """Yield the events from `at` up to `target`, and move `at` there."""
        for stream, filters in tail.filters(job, public=True).items():
            while at.get(stream, 0) < target.get(stream, 0):
                async with self.turn:
                    read = await self._read(stream, filters, at.get(stream, 0), target[stream])
                for first in range(0, len(read), PORTION):
                    async with self.turn:
                        events = list[FeedEvent]()
                        for recorded in _decoded(read[first : first + PORTION]):
                            at[stream] = recorded.sequence
                            events.append(FeedEvent(recorded, dict(at)))
                    yield events
                if not read:
                    at[stream] = target[stream]

    async def _read(self, stream: Stream, filters: Sequence[str], after: int, target: int) -> list[Recorded[Message]]:
        """Return the next messages up to `target`, undecoded; none: there are none."""
        read = list[Recorded[Message]]()
        async with aclosing(self._log.follow(stream, *filters, after=after, decode=_undecoded)) as batches:
            async for batch in batches:
                read += (recorded for recorded in batch.messages if recorded.sequence <= target)
                if batch.caught_up or batch.upto >= target or len(read) >= OLDER_AT_ONCE:
                    break
        return read


def _undecoded(subject: str, body: bytes) -> Message:
    return cast("Message", _Undecoded(subject, body))


def _decoded(read: Sequence[Recorded[Message]]) -> Iterator[Recorded[Message]]:
    for recorded in read:
        kept: object = recorded.message
        with suppress(DecodeError):
            yield (
                recorded
                if not isinstance(kept, _Undecoded)
                else msgspec.structs.replace(recorded, message=decode(*kept))
            )


def _is_after(recorded: Recorded[Message], at: Mapping[Stream, int]) -> bool:
    return recorded.sequence > at.get(stream_of(recorded.subject), 0)
