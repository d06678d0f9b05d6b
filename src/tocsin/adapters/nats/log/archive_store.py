"""The archive in a NATS object store, which is as durable as the streams."""

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError, ObjectDeletedError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from ....ports import LogUnavailable
from ..client.connection import Connection
from ..client.names import Names
from ..client.requests import CONNECTION_ERRORS


class NatsArchiveStore:
    """Implement `ports.ArchiveStore`. `provision` must have created the bucket."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """Use the archive bucket of an installation."""
        self._jetstream: JetStreamContext = connection.client.jetstream()
        self._bucket = names.archive_bucket

    async def put(self, name: str, body: bytes) -> None:
        """Store an object; it gets its name when all of it is stored.

        Raises:
            LogUnavailable: the server does not answer.
        """
        if await self.get(name) == body:
            return
        try:
            await (await self._store()).put(name, body)
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"the archive: {error}") from error

    async def get(self, name: str) -> bytes | None:
        """Return an object after comparing its digest; None if it does not exist.

        Raises:
            LogUnavailable: the server does not answer.
        """
        try:
            return (await (await self._store()).get(name)).data
        except (ObjectNotFoundError, ObjectDeletedError, NotFoundError):
            return None
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"the archive: {error}") from error

    async def _store(self) -> ObjectStore:
        return await self._jetstream.object_store(self._bucket)
