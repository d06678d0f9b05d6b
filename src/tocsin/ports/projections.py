"""Read models by key."""

from typing import Protocol

from ..subjects import Bucket


class Projections(Protocol):
    """Small read models by key, with an optional life time."""

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """The value and its revision."""
        ...

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        """Store a value, for `ttl` seconds if given, if its revision is `expect` (0: absent; None: whatever); its revision.

        Raises:
            SequenceConflict: the revision is another.
        """
        ...

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        """Remove a key, if its revision is `expect`. Removing what is absent is no error."""
        ...

    async def entries(self, bucket: Bucket) -> dict[str, bytes]:
        """Every key and its value."""
        ...
