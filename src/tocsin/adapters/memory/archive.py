"""The archive and small read models in memory."""

import math
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from ... import subjects
from ...ports import EntryWrite, Extent, SequenceConflict, StaleRead, StoredMessage, Written, check_keys, write_entry
from ...subjects import Bucket, Stream
from .clock import AlarmClock, ManualClock
from .event_log import InMemoryEventLog
from .stored_stream import Entry

MESSAGES_AT_ONCE: Final = 1_000


class InMemoryStoredLog:
    """Implement `ports.StoredLog` over an `InMemoryEventLog`."""

    def __init__(self, log: InMemoryEventLog, *, lag: int = 0) -> None:
        """`lag`: the number of messages at the end of each stream that the replica lacks."""
        self._log = log
        self._lag = lag

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:  # noqa: ARG002 - the port's parameter
        return ()

    async def extent(self, stream: Stream) -> Extent:
        stored = self._log.stream(stream)
        entries = list(stored.entries_after(0))
        first = entries[0].sequence if entries else stored.last_sequence + 1
        size = sum(len(entry.subject) + len(entry.body) for entry in entries)
        return Extent(first, stored.last_sequence, len(entries), size)

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        entries = [
            entry
            for entry in self._log.stream(stream).entries_after(after if isinstance(after, int) else 0)
            if entry.sequence <= upto
            and (isinstance(after, int) or entry.time >= after)
            and (not filters or any(subjects.matches(name, entry.subject) for name in filters))
        ]
        replicated = self._log.stream(stream).last_sequence - self._lag
        present = [entry for entry in entries if entry.sequence <= replicated]
        for i in range(0, len(present), MESSAGES_AT_ONCE):
            yield [_stored(stream, entry) for entry in present[i : i + MESSAGES_AT_ONCE]]
        if len(present) < len(entries):
            raise StaleRead.of(f"the stream {stream}")


def _stored(stream: Stream, entry: Entry) -> StoredMessage:
    return StoredMessage(stream, entry.sequence, entry.time, entry.subject, entry.headers, entry.body)


class InMemoryArchiveStore:
    """Implement `ports.ArchiveStore`."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, body: bytes) -> None:
        self._objects.setdefault(name, body)

    async def get(self, name: str) -> bytes | None:
        return self._objects.get(name)


class InMemoryStreamPurge:
    """Implement `ports.StreamPurge` over an `InMemoryEventLog`."""

    def __init__(self, log: InMemoryEventLog) -> None:
        self._log = log

    async def decided(self, stream: Stream) -> int:
        end = self._log.stream(stream).last_sequence
        floors = [progress.floor for progress in self._log.progress_of_all(stream) if not progress.is_idle]
        return min([end, *floors])

    def obstacle(self) -> str | None:
        return None

    async def purge(self, subject: str, *, upto: int) -> None:
        stream = self._log.stream(subjects.stream_of(subject))
        for entry in stream.matching((subject,), 0):
            if entry.sequence <= upto:
                stream.remove(entry.sequence)


class InMemoryProjections:
    """Implement `ports.Projections`. Lifetimes end by its clock."""

    def __init__(self, clock: AlarmClock | None = None) -> None:
        self.clock: AlarmClock = clock or ManualClock()
        self._buckets: dict[Bucket, dict[str, tuple[bytes, int]]] = {bucket: {} for bucket in Bucket}
        self._revisions = dict.fromkeys(Bucket, 0)

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        return self._buckets[bucket].get(key)

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        if ttl is not None and ttl <= 0:
            raise ValueError(f"ttl {ttl}: it must be more than 0 seconds")
        self._check(bucket, key, expect)
        self._revisions[bucket] += 1
        revision = self._revisions[bucket]
        self._buckets[bucket][key] = value, revision
        if ttl is not None:
            self.clock.after(math.ceil(ttl), partial(self._expire, bucket, key, revision))
        return revision

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        if key not in self._buckets[bucket]:
            return
        self._check(bucket, key, expect)
        self._revisions[bucket] += 1
        del self._buckets[bucket][key]

    async def get_each(self, bucket: Bucket, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        return [await self.get(bucket, key) for key in keys]

    async def write(self, bucket: Bucket, writes: Sequence[EntryWrite]) -> list[Written]:
        check_keys(writes)
        return [await write_entry(self, bucket, write) for write in writes]

    async def entries(self, bucket: Bucket, keys: str = ">") -> dict[str, bytes]:
        return {key: value for key, (value, _) in self._buckets[bucket].items() if subjects.matches(keys, key)}

    def _check(self, bucket: Bucket, key: str, expect: int | None) -> None:
        _, revision = self._buckets[bucket].get(key, (b"", 0))
        if expect is not None and expect != revision:
            raise SequenceConflict(f"{bucket}/{key}: expected revision {expect}, is {revision}")

    def _expire(self, bucket: Bucket, key: str, revision: int) -> None:
        if self._buckets[bucket].get(key, (b"", 0))[1] == revision:
            del self._buckets[bucket][key]
