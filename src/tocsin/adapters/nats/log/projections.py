"""Small read models in JetStream KV buckets.

They are written by plain guarded publishes, because the client's KV API cannot create a key over the marker of an
expired one, and cannot renew a lifetime.
"""

import math
from collections.abc import Sequence
from typing import Final

from ....ports import EntryWrite, SequenceConflict, Written, check_keys, write_entry
from ....subjects import Bucket
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.transport import Headers, Outgoing
from .direct_get import DirectGet, Stored

MARKER_TTL_S: Final = 3_600
"""The server keeps the marker of a removed key this long, for the watchers of the bucket."""
_ATTEMPTS: Final = 5


class NatsProjections:
    """Implement `ports.Projections`. Lifetimes are rounded up to whole seconds."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._streams = {bucket: DirectGet(connection, names.bucket_stream(bucket)) for bucket in Bucket}

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        stored = await self.stored(bucket, key)
        return None if stored is None or is_marker(stored) else (stored.body, stored.sequence)

    async def stored(self, bucket: Bucket, key: str) -> Stored | None:
        """Return the message of a key, which may be the marker of a removed key."""
        return await self._streams[bucket].last(self._names.key(bucket, key))

    async def get_each(self, bucket: Bucket, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        subjects = [self._names.key(bucket, key) for key in keys]
        valid = [subject for subject in subjects if all(subject.split("."))]  # the server refuses an empty token
        newest = await self._streams[bucket].last_of_each(valid) if valid else ()
        stored = {m.subject: (m.body, m.sequence) for m in newest if not is_marker(m)}
        return [stored.get(subject) for subject in subjects]

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        if ttl is not None and ttl <= 0:
            raise ValueError(f"ttl {ttl}: it must be more than 0 seconds")
        headers = _lifetime(ttl)
        subject = self._names.key(bucket, key)
        if expect != 0:
            return await self._connection.store(subject, value, headers | _guard(expect))
        # A removed or expired key counts as absent, but its marker has a sequence.
        for _ in range(_ATTEMPTS):
            try:
                return await self._connection.store(subject, value, headers | _guard(expect))
            except SequenceConflict:
                stored = await self._streams[bucket].last(subject)
                if stored is not None and not is_marker(stored):
                    raise
                expect = stored.sequence if stored else 0
        raise SequenceConflict(f"{subject}: markers of removed keys were stored at every try")

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        try:
            await self._connection.store(self._names.key(bucket, key), b"", _REMOVAL | _guard(expect))
        except SequenceConflict:
            if await self.get(bucket, key) is not None:
                raise

    async def write(self, bucket: Bucket, writes: Sequence[EntryWrite]) -> list[Written]:
        check_keys(writes)
        # A refused write is repeated alone, because a marker has a sequence, and an absent key needs no removal.
        results = await self._connection.store_each([self._message(bucket, write) for write in writes])
        return [
            await write_entry(self, bucket, write) if isinstance(result, SequenceConflict) else _written(write, result)
            for write, result in zip(writes, results, strict=True)
        ]

    def _message(self, bucket: Bucket, write: EntryWrite) -> Outgoing:
        headers = _guard(write.expect) | (_REMOVAL if write.value is None else _lifetime(write.ttl))
        return Outgoing(self._names.key(bucket, write.key), write.value or b"", headers)

    async def entries(self, bucket: Bucket, keys: str = ">") -> dict[str, bytes]:
        prefix = self._names.key(bucket, "")
        messages = await self._streams[bucket].last_of_each([f"{prefix}{keys}"])
        return {stored.subject[len(prefix) :]: stored.body for stored in messages if not is_marker(stored)}


_REMOVAL: Final[Headers] = {wire.KV_OPERATION: "PURGE", wire.ROLLUP: "sub", wire.TTL: str(MARKER_TTL_S)}


def _written(write: EntryWrite, result: int | Exception) -> Written:
    if isinstance(result, Exception):
        return Written((), result)
    return Written(() if write.value is None else (result,))


def _lifetime(ttl: float | None) -> Headers:
    return {} if ttl is None else {wire.TTL: str(math.ceil(ttl))}


def _guard(expect: int | None) -> Headers:
    return {} if expect is None else {wire.EXPECTED_SEQUENCE: str(expect)}


def is_marker(stored: Stored) -> bool:
    """Return whether a message marks a removed or expired key."""
    return wire.KV_OPERATION in stored.headers or wire.MARKER_REASON in stored.headers
