"""Read models by key."""

from typing import Protocol

from ..subjects import Bucket


class Projections(Protocol):
    """Small read models by key, with an optional time to live."""

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """Return the value and its revision."""
        ...

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        """Store a value, and return its revision.

        The value lives for `ttl` seconds if given. `expect` is the revision to replace (0: the key is absent; None:
        any).

        Raises:
            SequenceConflict: the revision differs.
        """
        ...

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        """Remove a key if its revision is `expect`; removing an absent key is no error."""
        ...

    async def entries(self, bucket: Bucket) -> dict[str, bytes]:
        """Return every key and its value."""
        ...
