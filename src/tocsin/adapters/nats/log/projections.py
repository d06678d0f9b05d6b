"""Small read models in JetStream KV buckets.

Written by plain guarded publishes: the client's own KV refuses to create a key over the marker that an expired one leaves,
and cannot renew a life time.
"""

import math
from typing import Final

from ....ports import SequenceConflict
from ....subjects import Bucket
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.publish import Headers
from .direct_get import DirectGet, Stored

MARKER_TTL: Final = 3_600
"""Seconds that the mark of a removed key is kept, for those who watch the bucket."""
_ATTEMPTS: Final = 5


class NatsProjections:
    """Implements `ports.Projections`. Any call raises `LogUnavailable` when the server does not answer."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """The buckets exist: `provision` made them."""
        self._connection = connection
        self._names = names
        self._streams = {bucket: DirectGet(connection, names.bucket_stream(bucket)) for bucket in Bucket}

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """The value and its revision."""
        stored = await self.stored(bucket, key)
        return None if stored is None or is_marker(stored) else (stored.body, stored.sequence)

    async def stored(self, bucket: Bucket, key: str) -> Stored | None:
        """What is stored under a key, be it the mark of one that was removed."""
        return await self._streams[bucket].last(self._names.key(bucket, key))

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        """Store a value if its revision is `expect`; its revision. Life times are whole seconds, rounded up."""
        if ttl is not None and ttl <= 0:
            raise ValueError(f"ttl {ttl}: more than 0 seconds are needed")
        headers = {} if ttl is None else {wire.TTL: str(math.ceil(ttl))}
        subject = self._names.key(bucket, key)
        if expect != 0:
            return await self._connection.store(subject, value, headers | _guard(expect))
        # Absent is also what a removed or expired key is; its mark has a sequence of its own.
        for _ in range(_ATTEMPTS):
            try:
                return await self._connection.store(subject, value, headers | _guard(expect))
            except SequenceConflict:
                stored = await self._streams[bucket].last(subject)
                if stored is not None and not is_marker(stored):
                    raise
                expect = stored.sequence if stored else 0
        raise SequenceConflict(f"{subject}: its marks come and go")

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        """Remove a key if its revision is `expect`."""
        headers = {wire.KV_OPERATION: "PURGE", wire.ROLLUP: "sub", wire.TTL: str(MARKER_TTL)}
        try:
            await self._connection.store(self._names.key(bucket, key), b"", headers | _guard(expect))
        except SequenceConflict:
            if await self.get(bucket, key) is not None:
                raise

    async def entries(self, bucket: Bucket) -> dict[str, bytes]:
        """Every key and its value."""
        prefix = self._names.key(bucket, "")
        found = await self._streams[bucket].last_of_each([f"{prefix}>"])
        return {stored.subject[len(prefix) :]: stored.body for stored in found if not is_marker(stored)}


def _guard(expect: int | None) -> Headers:
    return {} if expect is None else {wire.EXPECTED_SEQUENCE: str(expect)}


def is_marker(stored: Stored) -> bool:
    """Whether it stands for a key that was removed, or expired."""
    return wire.KV_OPERATION in stored.headers or wire.MARKER_REASON in stored.headers
