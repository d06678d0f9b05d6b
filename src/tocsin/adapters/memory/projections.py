"""Small read models in memory."""

import math
from dataclasses import dataclass
from functools import partial

from ...ports import SequenceConflict
from ...subjects import Bucket
from .clock import ManualClock


@dataclass(frozen=True, slots=True)
class _Value:
    body: bytes
    revision: int


class InMemoryProjections:
    """Implement `ports.Projections`.

    Lifetimes end by its clock.
    """

    def __init__(self, clock: ManualClock | None = None) -> None:
        """Start with empty buckets."""
        self.clock = clock or ManualClock()
        self._buckets: dict[Bucket, dict[str, _Value]] = {bucket: {} for bucket in Bucket}
        self._revisions = dict.fromkeys(Bucket, 0)

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """Return a key's value and revision."""
        value = self._buckets[bucket].get(key)
        return None if value is None else (value.body, value.revision)

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        """Store a value if the key's revision is `expect`; return the new revision.

        Lifetimes are rounded up to whole seconds.
        """
        if ttl is not None and ttl <= 0:
            raise ValueError(f"ttl {ttl}: it must be more than 0 seconds")
        self._check(bucket, key, expect)
        self._revisions[bucket] += 1
        revision = self._revisions[bucket]
        self._buckets[bucket][key] = _Value(value, revision)
        if ttl is not None:
            self.clock.after(math.ceil(ttl), partial(self._expire, bucket, key, revision))
        return revision

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        """Remove a key if its revision is `expect`."""
        if key not in self._buckets[bucket]:
            return
        self._check(bucket, key, expect)
        self._revisions[bucket] += 1
        del self._buckets[bucket][key]

    async def entries(self, bucket: Bucket) -> dict[str, bytes]:
        """Return all keys and their values."""
        return {key: value.body for key, value in self._buckets[bucket].items()}

    def _check(self, bucket: Bucket, key: str, expect: int | None) -> None:
        value = self._buckets[bucket].get(key)
        revision = value.revision if value else 0
        if expect is not None and expect != revision:
            raise SequenceConflict(f"{bucket}/{key}: expected revision {expect}, is {revision}")

    def _expire(self, bucket: Bucket, key: str, revision: int) -> None:
        value = self._buckets[bucket].get(key)
        if value is not None and value.revision == revision:
            del self._buckets[bucket][key]
