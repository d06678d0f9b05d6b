"""Feeds of stored events: readers of the same events share a follower of the log.

Each reader has a bounded buffer. A reader that is too slow is dropped, so that it neither takes memory nor delays others. It can
continue from the position of the last event that it received: events before the position of the feed are read from the log.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, cast

from ..domain.errors import TocsinError
from ..domain.events import Message, Recorded
from ..ports import Batch, EventLog
from ..subjects import Stream, stream_of
from . import tail

MAX_BUFFERED: Final = 2_000
"""Events that wait for one reader."""


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

    def __init__(self, log: EventLog, most: int | None = None) -> None:
        """Allow at most `most` readers; None: any number.

        Readers that are bound to the same namespaces may be half of them.
        """
        self._log = log
        self._most = most
        self._feeds: dict[str | None, _Feed] = {}
        self._readers = Counter[frozenset[str] | None]()
        """The readers by the namespaces to which they are bound."""

    def check_room(self, namespaces: frozenset[str] | None = None) -> None:
        """Check that a further reader, bound to some namespaces, may follow events.

        Raises:
            TooManyReaders: it may not.
        """
        if self._most is None:
            return
        if self._readers.total() >= self._most:
            raise TooManyReaders(f"{self._most:,} clients follow events already. Retry later")
        most = max(1, self._most // 2)
        if namespaces is not None and self._readers[namespaces] >= most:
            raise TooManyReaders(
                f"{most:,} clients of these namespaces follow events already. Close some, or retry later"
            )

    async def follow(
        self,
        job: str | None,
        after: Mapping[Stream, int] | None = None,
        *,
        namespaces: frozenset[str] | None = None,
    ) -> AsyncGenerator[Sequence[FeedEvent], None]:
        """Yield events after a position, by default from now on.

        `namespaces`: those to which the reader is bound, for the limit alone. The feed ends when the reader is too slow.

        Raises:
            TooManyReaders: the limit is reached.
            LogUnavailable: the log does not answer.
        """
        self.check_room(namespaces)
        self._readers[namespaces] += 1
        feed = self._feeds.get(job)
        if feed is None or feed.has_ended:
            feed = self._feeds[job] = _Feed(self._log, job)
        feed.users += 1
        reader = _Reader()
        try:
            await feed.started()
            at = dict(feed.at if after is None else after)
            while _distance(at, feed.at) > MAX_BUFFERED // 2:
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
            self._readers -= Counter([namespaces])  # keeps no count of zero
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
            if at.get(stream, 0) >= target.get(stream, 0):
                continue
            follower = self._log.follow(stream, *filters, after=at.get(stream, 0))
            async with aclosing(cast("AsyncGenerator[Batch, None]", follower)) as batches:
                async for batch in batches:
                    events = list[FeedEvent]()
                    for recorded in batch.messages:
                        if recorded.sequence <= target[stream]:
                            at[stream] = recorded.sequence
                            events.append(FeedEvent(recorded, dict(at)))
                    if events:
                        yield events
                    if batch.caught_up or batch.upto >= target[stream]:
                        break
            at[stream] = target[stream]


def _distance(at: Mapping[Stream, int], target: Mapping[Stream, int]) -> int:
    return sum(max(0, target[stream] - at.get(stream, 0)) for stream in target)


def _is_after(recorded: Recorded[Message], at: Mapping[Stream, int]) -> bool:
    return recorded.sequence > at.get(stream_of(recorded.subject), 0)
