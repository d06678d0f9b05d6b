"""Objects in a NATS object store: as durable as the streams, and readable for whoever reads them."""

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError, ObjectDeletedError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from ....ports import LogUnavailable
from ..client.connection import TROUBLE, Connection
from ..client.names import Names


class NatsArchiveStore:
    """Implements `ports.ArchiveStore`. The bucket exists: `provision` made it."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """The bucket of this installation."""
        self._jetstream: JetStreamContext = connection.client.jetstream()
        self._bucket = names.archive_bucket

    async def put(self, name: str, body: bytes) -> None:
        """Keep an object. It has its name when all of it is stored.

        Raises:
            LogUnavailable: no answer.
        """
        if await self.get(name) == body:
            return
        try:
            await (await self._store()).put(name, body)
        except TROUBLE as error:
            raise LogUnavailable(f"the archive: {error}") from error

    async def get(self, name: str) -> bytes | None:
        """An object, whole: its digest was compared.

        Raises:
            LogUnavailable: no answer.
        """
        try:
            return (await (await self._store()).get(name)).data
        except (ObjectNotFoundError, ObjectDeletedError, NotFoundError):
            return None
        except TROUBLE as error:
            raise LogUnavailable(f"the archive: {error}") from error

    async def _store(self) -> ObjectStore:
        return await self._jetstream.object_store(self._bucket)
