"""An event log whose decisions are commits, and whose other streams are those of another log."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime

from .. import subjects
from ..domain.events import Message, Recorded, Timer
from ..ports import (
    Append,
    Batch,
    Decode,
    EventLog,
    Headings,
    Loaded,
    Progress,
    Publish,
    Write,
    Written,
    check_scopes,
)
from ..subjects import DECISION_STREAMS, Stream
from .commit_view import CommitView


class RoutedLog:
    """Implement `ports.EventLog`."""

    def __init__(self, base: EventLog, view: CommitView) -> None:
        """`view` has the events of commits, and stores decisions as commits."""
        self.base = base
        self.view = view

    def _of(self, stream: Stream) -> EventLog | CommitView:
        return self.view if stream in DECISION_STREAMS else self.base

    def _for(self, subject: str) -> EventLog | CommitView:
        return self._of(subjects.stream_of(subject))

    @property
    def max_message_bytes(self) -> int:
        return self.base.max_message_bytes

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        return await self.base.publish(subject, message, message_id=message_id, ttl=ttl)

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        await self.base.publish_together(inputs)

    async def append(self, fact: Message, *, expect: int) -> int:
        return await self._for(subjects.scope_of(fact)).append(fact, expect=expect)

    async def remove(self, subject: str, sequence: int) -> None:
        await self.base.remove(subject, sequence)

    async def delay(self, timer: Timer, *, until: datetime) -> None:
        await self.base.delay(timer, until=until)

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        check_scopes(writes)
        if all(isinstance(write, Append) and self._for(write.scope) is self.view for write in writes):
            return await self.view.write(writes)
        decided = [isinstance(write, Append) and self._for(write.scope) is self.view for write in writes]
        own, others = await asyncio.gather(
            self.view.write([write for write, is_decided in zip(writes, decided, strict=True) if is_decided]),
            self.base.write([write for write, is_decided in zip(writes, decided, strict=True) if not is_decided]),
        )
        results = iter(own), iter(others)
        return [next(results[not is_decided]) for is_decided in decided]

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        return await self._for(scope).load(scope, after=after)

    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        return await self._for(scopes[0]).load_each(*scopes, after=after)

    async def tail(self, scope: str) -> int:
        return await self._for(scope).tail(scope)

    async def tails(self, *scopes: str) -> list[int]:
        return [await self.tail(scope) for scope in scopes]

    async def end(self, stream: Stream) -> int:
        return await self._of(stream).end(stream)

    async def replicas(self, stream: Stream) -> int:
        return await self.base.replicas(stream)

    async def has_newer(self, *filters: str, after: int, upto: int | None = None) -> bool:
        return await self._for(filters[0]).has_newer(*filters, after=after, upto=upto)

    async def now(self) -> datetime:
        return await self.base.now()

    async def last(self, subject: str) -> Recorded[Message] | None:
        return await self._for(subject).last(subject)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        return await self._for(subject).get(subject, sequence)

    async def read(
        self, subject: str, *, after: int = 0, limit: int = 1_000, confirm: bool = False
    ) -> list[Recorded[Message]]:
        return await self._for(subject).read(subject, after=after, limit=limit, confirm=confirm)

    def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        return self._of(stream).follow(stream, *filters, after=after, decode=decode)

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncGenerator[Headings, None]:
        return self._of(stream).watch(stream, *filters, after=after)

    async def progress(self, stream: Stream, durable: str) -> Progress | None:
        return None if stream in DECISION_STREAMS else await self.base.progress(stream, durable)
