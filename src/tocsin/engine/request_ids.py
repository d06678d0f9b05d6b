"""Ids that are known for a time, as keyed hashes.

They are the ids of requests that were decided, and of executions that ended.

The hashes have 16 bytes under a key of the installation, so no choice of an id meets another. Each publisher has its own limit: a flood of one
publisher makes its own oldest ids unknown, and no other's. Time is the time of the commits, so all processes know the same ids.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

import msgspec

MAX_IDS: Final = 1_000_000
"""Ids of a publisher."""
DEDUP_WINDOW: Final = timedelta(hours=24)
"""How long a request with an id is known after its execution left the fold."""
GRAIN: Final = timedelta(seconds=10)
"""Ids of this time are kept together: they stay up to so much longer."""
DIGEST_SIZE: Final = 16


class KnownIds(msgspec.Struct, frozen=True):
    """Ids of a publisher that were added at about the same time."""

    publisher: str
    at: datetime
    hashes: bytes
    """The hashes in the order in which they were added, without a separator."""


class RequestIds:
    """Ids by publisher, each for a window of time."""

    def __init__(self, key: bytes, window: timedelta, limit: int = MAX_IDS) -> None:
        """`key`: up to 64 bytes. `limit`: ids of a publisher."""
        self._key = key
        self._window = window
        self._limit = limit
        self._known: set[bytes] = set()
        self._buckets: dict[str, deque[tuple[datetime, deque[bytes]]]] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._known)

    def has(self, hashed: bytes) -> bool:
        """Return whether the id with a hash is known."""
        return hashed in self._known

    def add(self, publisher: str, name: str, at: datetime) -> None:
        """Know an id from a time (UTC) on; times never go back."""
        self._put(publisher, self.hash_of(name), at)

    def expire(self, at: datetime) -> None:
        """Forget the ids that are too old at a time (UTC)."""
        for publisher, buckets in list(self._buckets.items()):
            while buckets and buckets[0][0] + GRAIN + self._window <= at:
                _, hashes = buckets.popleft()
                self._known.difference_update(hashes)
                self._counts[publisher] -= len(hashes)
            if not buckets:
                del self._buckets[publisher], self._counts[publisher]

    def dump(self) -> Iterator[KnownIds]:
        """Yield all ids."""
        for publisher, buckets in sorted(self._buckets.items()):
            for at, hashes in buckets:
                yield KnownIds(publisher, at, b"".join(hashes))

    def load(self, known: Iterable[KnownIds]) -> None:
        """Add ids that `dump` yielded, in their order."""
        for each in known:
            for start in range(0, len(each.hashes), DIGEST_SIZE):
                self._put(each.publisher, each.hashes[start : start + DIGEST_SIZE], each.at)

    def _put(self, publisher: str, hashed: bytes, at: datetime) -> None:
        if hashed in self._known:
            return
        self._known.add(hashed)
        buckets = self._buckets.setdefault(publisher, deque())
        if not buckets or at >= buckets[-1][0] + GRAIN:
            buckets.append((at, deque()))
        buckets[-1][1].append(hashed)
        count = self._counts[publisher] = self._counts.get(publisher, 0) + 1
        if count > self._limit:
            oldest = buckets[0][1]
            self._known.discard(oldest.popleft())
            self._counts[publisher] -= 1
            if not oldest:
                buckets.popleft()

    def hash_of(self, name: str) -> bytes:
        """Return the hash of an id."""
        return blake2b(name.encode(), key=self._key, digest_size=DIGEST_SIZE).digest()
