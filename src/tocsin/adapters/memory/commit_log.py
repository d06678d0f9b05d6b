"""A log of commits in memory."""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator
from datetime import datetime
from operator import attrgetter
from typing import Final

from ...ports import Clock, MessageTooLarge
from ...ports.commit_log import Bodies, CommitRefused, StoredBody
from .stored_stream import MAX_BYTES

_ROOM_FOR_HEADERS = 1_024
_sequence: Final = attrgetter("sequence")


class InMemoryCommitLog:
    """Implement `ports.CommitLog` in memory. It refuses the same commits as NATS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._stored: dict[int, list[StoredBody]] = defaultdict(list)
        self._changed = asyncio.Condition()

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        if len(body) + _ROOM_FOR_HEADERS > MAX_BYTES:
            raise MessageTooLarge.of(f"log.{partition}", len(body), MAX_BYTES)
        stored = self._stored[partition]
        last = stored[-1].sequence if stored else 0
        if last != expect:
            raise CommitRefused(partition, last)
        return await self.receive(partition, body)

    async def receive(self, partition: int, body: bytes) -> int:
        """Store arbitrary bytes without a guard, as a foreign publisher could; return the sequence."""
        self._last += 1
        self._stored[partition].append(StoredBody(self._last, self._clock.now(), body))
        async with self._changed:
            self._changed.notify_all()
        return self._last

    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        return next(iter(self.after(partition, after)), None)

    def after(self, partition: int, sequence: int) -> list[StoredBody]:
        stored = self._stored[partition]
        return stored[bisect_right(stored, sequence, key=_sequence) :]

    async def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        while True:
            bodies = self.after(partition, after)
            after = bodies[-1].sequence if bodies else max(after, self._last)
            yield Bodies(bodies, caught_up=True, upto=after)
            async with self._changed:
                await self._changed.wait_for(lambda: self._has_newer(partition, after))  # noqa: B023 - waited for at once

    async def now(self) -> datetime:
        return self._clock.now()

    async def purge(self, partition: int, *, upto: int) -> None:
        self._stored[partition] = self.after(partition, upto) or self._stored[partition][-1:]

    def _has_newer(self, partition: int, after: int) -> bool:
        stored = self._stored[partition]
        return bool(stored) and stored[-1].sequence > after
