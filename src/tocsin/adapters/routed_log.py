"""An event log with commits as its decisions; another log has its other streams."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TypeAlias

from .. import subjects
from ..domain.events import Message, Recorded
from ..domain.log_events import LeaderChange
from ..ports import (
    Batch,
    Decode,
    InputLog,
    Loaded,
    Publish,
    Write,
    Written,
    check_scopes,
)
from ..subjects import DECISION_STREAMS, Stream
from .commit_view import CommitView

View: TypeAlias = Callable[[], Awaitable[CommitView]]
"""Returns the events of commits, and stores decisions as commits, once they are read."""


class RoutedLog:
    """Implement `ports.EventLog`."""

    def __init__(self, base: InputLog, view: View) -> None:
        self.base = base
        self._view = view

    async def _of(self, stream: Stream) -> InputLog | CommitView:
        return await self._view() if stream in DECISION_STREAMS else self.base

    async def _for(self, subject: str) -> InputLog | CommitView:
        return await self._of(subjects.stream_of(subject))

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        return await self.base.publish(subject, message, message_id=message_id, ttl=ttl)

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        await self.base.publish_together(inputs)

    async def append(self, fact: Message, *, expect: int) -> int:
        return await (await self._for(subjects.scope_of(fact))).append(fact, expect=expect)

    async def remove(self, subject: str, sequence: int) -> None:
        await self.base.remove(subject, sequence)

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        decided = [scope != "" and subjects.stream_of(scope) in DECISION_STREAMS for scope in check_scopes(writes)]
        if all(decided):
            return await (await self._view()).write(writes) if writes else []
        if not any(decided):
            return await self.base.write(writes)
        own, others = await asyncio.gather(
            (await self._view()).write([write for write, is_own in zip(writes, decided, strict=True) if is_own]),
            self.base.write([write for write, is_own in zip(writes, decided, strict=True) if not is_own]),
        )
        results = iter(own), iter(others)
        return [next(results[not is_own]) for is_own in decided]

    async def load(self, scope: str) -> list[Recorded[Message]]:
        return await (await self._for(scope)).load(scope)

    async def load_each(self, *scopes: str) -> Loaded:
        return await (await self._for(scopes[0])).load_each(*scopes)

    async def tail(self, scope: str) -> int:
        return await (await self._for(scope)).tail(scope)

    async def tails(self, *scopes: str) -> list[int]:
        return [await self.tail(scope) for scope in scopes]

    async def end(self, stream: Stream) -> int:
        return await (await self._of(stream)).end(stream)

    async def replicas(self) -> int:
        return await self.base.replicas()

    async def has_newer(self, *filters: str, after: int) -> bool:
        return await (await self._view()).has_newer(*filters, after=after)

    async def leaders(self, lease: str, *, after: int = 0) -> list[LeaderChange]:
        return await (await self._view()).leaders(lease, after=after)

    async def now(self) -> datetime:
        return await self.base.now()

    async def last(self, subject: str) -> Recorded[Message] | None:
        return await (await self._for(subject)).last(subject)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        return await (await self._for(subject)).get(subject, sequence)

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        return await (await self._for(subject)).read(subject, after=after, limit=limit)

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        following = (await self._of(stream)).follow(stream, *filters, after=after, decode=decode)
        async with aclosing(following) as batches:
            async for batch in batches:
                yield batch
