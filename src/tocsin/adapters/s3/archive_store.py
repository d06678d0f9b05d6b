"""Archive objects in a bucket of S3 or of a compatible store."""

from ...ports import ArchiveUnavailable
from ..store_errors import StoreUnavailable
from .bucket import Bucket


class S3ArchiveStore:
    """Implement `ports.ArchiveStore`. An object is never overwritten: its name holds a part of its digest."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def put(self, name: str, body: bytes) -> None:
        """Store an object, unless an object of that name exists.

        Raises:
            ArchiveUnavailable: the store does not answer, or refuses.
        """
        try:
            await self._bucket.create(name, body)
        except StoreUnavailable as error:
            raise ArchiveUnavailable(f"the archive: {error}") from error

    async def get(self, name: str) -> bytes | None:
        """Return an object, or None if it does not exist.

        Raises:
            ArchiveUnavailable: the store does not answer, or refuses.
        """
        try:
            return await self._bucket.get(name)
        except StoreUnavailable as error:
            raise ArchiveUnavailable(f"the archive: {error}") from error
