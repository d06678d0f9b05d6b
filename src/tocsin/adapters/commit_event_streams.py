"""Durables for the events of triggers, where decisions are commits.

Durables over ends of executions follow the commits.

The place of such a durable is a KV entry. One copy of the stage reads them, as long as it holds the lease: the requests of a repeated event have the
same ids, but other batches of the same events would have others.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import Final

from ..ports import (
    Delivery,
    DurableSpec,
    EventDurable,
    EventLog,
    EventReader,
    EventStreams,
    LogUnavailable,
    Progress,
    Projections,
    SequenceConflict,
)
from ..subjects import Bucket, Stream, ends_key
from .memory.clock import AlarmClock
from .memory.durable import InMemoryDurable
from .memory.stored_stream import StoredStream

MAX_ACK_PENDING: Final = 1_000
MAX_AHEAD: Final = 10_000
"""Events that are read ahead of the place."""
WAIT_S: Final = 0.5


class CommitEventStreams:
    """Implement `ports.EventStreams`: durables over the log follow commits, and another implementation has the other durables."""

    def __init__(
        self,
        base: EventStreams,
        log: EventLog,
        projections: Projections,
        clock: AlarmClock,
        is_leading: Callable[[], bool],
    ) -> None:
        """`is_leading`: whether the process holds the lease, which another loop renews."""
        self._base = base
        self._log = log
        self._projections = projections
        self._clock = clock
        self._is_leading = is_leading
        self._open: dict[str, InMemoryDurable] = {}

    @property
    def log_stream(self) -> str:
        return self._base.log_stream

    @property
    def webhook_stream(self) -> str:
        return self._base.webhook_stream

    def webhook(self, durable: str) -> str:
        return self._base.webhook(durable)

    async def create(self, durable: EventDurable) -> None:
        if durable.stream != self.log_stream:
            await self._base.create(durable)
            return
        end = str(await self._log.end(Stream.LOG)).encode()
        with suppress(SequenceConflict):  # it exists
            await self._projections.put(Bucket.TRIGGERS, ends_key(durable.name), end, expect=0)

    async def remove(self, stream: str, name: str) -> None:
        if stream == self.log_stream:
            await self._projections.remove(Bucket.TRIGGERS, ends_key(name))
        else:
            await self._base.remove(stream, name)

    async def names(self, stream: str) -> Collection[str]:
        if stream != self.log_stream:
            return await self._base.names(stream)
        places = await self._projections.entries(Bucket.TRIGGERS, ends_key(">"))
        return [key.removeprefix(ends_key("")) for key in places]

    async def progress(self, durable: EventDurable) -> Progress:
        if durable.stream != self.log_stream:
            return await self._base.progress(durable)
        if (own := self._open.get(durable.name)) is not None:
            return own.progress
        return Progress(await self._place(durable.name), is_idle=False)

    async def _place(self, name: str) -> int:
        entry = await self._projections.get(Bucket.TRIGGERS, ends_key(name))
        if entry is None:
            raise LogUnavailable(f"{self.log_stream}: the durable {name} is gone")
        return int(entry[0])

    def reading(self, durable: EventDurable) -> AbstractAsyncContextManager[EventReader]:
        return self._reading(durable) if durable.stream == self.log_stream else self._base.reading(durable)

    @asynccontextmanager
    async def _reading(self, durable: EventDurable) -> AsyncIterator[EventReader]:
        while not self._is_leading():
            await self._clock.sleep(WAIT_S)
        stream, ahead, after = StoredStream(self._clock), deque[int](), await self._place(durable.name)
        spec = DurableSpec(durable.name, Stream.LOG, durable.subjects, max_ack_pending=MAX_ACK_PENDING)
        own = self._open[durable.name] = InMemoryDurable(stream, spec, self._clock, after=after)
        reading = asyncio.create_task(self._fill(stream, own, after, ahead))
        try:
            yield _Reader(own, stream, ahead, self._projections, self._is_leading, reading)
        finally:
            del self._open[durable.name]
            reading.cancel()
            await asyncio.wait([reading])

    async def _fill(self, stream: StoredStream, durable: InMemoryDurable, after: int, ahead: deque[int]) -> None:
        following = self._log.follow(Stream.LOG, *durable.spec.filters, after=after)
        async with aclosing(following) as batches:
            async for batch in batches:
                for recorded in batch.messages:
                    stream.last_sequence = recorded.sequence - 1
                    stream.store(recorded.subject, recorded.message.encode(), time=recorded.time)
                    ahead.append(recorded.sequence)
                while len(ahead) > MAX_AHEAD:
                    await self._clock.sleep(WAIT_S)


class _Reader:
    """Implement `ports.EventReader`."""

    def __init__(
        self,
        durable: InMemoryDurable,
        stream: StoredStream,
        ahead: deque[int],
        projections: Projections,
        is_leading: Callable[[], bool],
        reading: "asyncio.Task[None]",
    ) -> None:
        self._durable = durable
        self._stream = stream
        self._ahead = ahead
        self._projections = projections
        self._is_leading = is_leading
        self._reading = reading
        self._saved = 0

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        floor = self._durable.progress.floor
        if floor > self._saved:
            await self._projections.put(Bucket.TRIGGERS, ends_key(self._durable.spec.name), str(floor).encode())
            while self._ahead and self._ahead[0] <= floor:
                self._stream.remove(self._ahead.popleft())
            self._saved = floor
        if self._reading.done() or not self._is_leading():
            raise LogUnavailable(f"the durable {self._durable.spec.name} is read no more")
        return await self._durable.take(limit, wait=wait)
