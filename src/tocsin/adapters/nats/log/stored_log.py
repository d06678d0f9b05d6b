"""The stored messages of the streams, read through ephemeral consumers."""

from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import ObjectInfo
from nats.js.errors import DigestMismatchError, NotFoundError, ObjectDeletedError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from ....ports import Extent, LogUnavailable, StoredMessage
from ....subjects import Stream
from ..client.connection import Connection
from ..client.names import Names
from ..client.requests import CONNECTION_ERRORS
from ..consumers.pull import Received
from .follow import read

MAX_LAG_S: Final = 30.0
"""Seconds for which a read waits for messages that its replicas lack."""


class NatsStoredLog:
    """Implement `ports.StoredLog`. It survives reconnects, and skips messages that are gone."""

    def __init__(self, connection: Connection, names: Names, *, max_lag: float = MAX_LAG_S) -> None:
        """`max_lag`: the seconds for which a read waits for messages that its replicas lack."""
        self._connection = connection
        self._names = names
        self._max_lag = max_lag

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:  # noqa: ARG002 - the port's parameter
        return ()

    async def extent(self, stream: Stream) -> Extent:
        state = (await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}"))["state"]
        return Extent(state["first_seq"], state["last_seq"], state["messages"], state["bytes"])

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        if not upto or (isinstance(after, int) and after >= upto):
            return
        make = partial(_portion, stream)
        async with aclosing(
            read(self._connection, self._names, stream, filters, after, make, max_lag=self._max_lag)
        ) as portions:
            async for portion in portions:
                matches = [message for message in portion.messages if message.sequence <= upto]
                if matches:
                    yield matches
                if portion.caught_up or portion.upto >= upto:
                    return


@dataclass(frozen=True, slots=True)
class _Portion:
    messages: Sequence[StoredMessage]
    caught_up: bool
    upto: int


def _portion(stream: Stream, received: Sequence[Received], caught_up: bool, upto: int) -> _Portion:  # noqa: FBT001 - `Batch` has the same flag
    stored = [
        StoredMessage(stream, message.sequence, message.time, message.subject, message.headers, message.body)
        for message in received
    ]
    return _Portion(stored, caught_up, upto)


class NatsArchiveStore:
    """Implement `ports.ArchiveStore`. `provision` must have created the bucket."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._jetstream: JetStreamContext = connection.client.jetstream()
        self._bucket = names.archive_bucket

    async def put(self, name: str, body: bytes) -> None:
        if await self.get(name) == body:
            return
        try:
            await (await self._store()).put(name, body)
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"the archive: {error}") from error

    async def get(self, name: str) -> bytes | None:
        try:
            return await self._read(await (await self._store()).get_info(name))
        except (ObjectNotFoundError, ObjectDeletedError, NotFoundError):
            return None
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"the archive: {error}") from error

    async def _read(self, info: ObjectInfo) -> bytes:
        """Return the content of an object.

        A read by the client would leave a consumer on the server, and a stream takes a thousand consumers.
        """
        subject, after, parts = f"$O.{self._bucket}.C.{info.nuid}", 0, list[bytes]()
        for _ in range(info.chunks or 0):
            part = await self._jetstream.get_msg(f"OBJ_{self._bucket}", seq=after + 1, subject=subject, next=True)
            after = part.seq or 0
            parts.append(part.data or b"")
        body = b"".join(parts)
        if info.digest != f"SHA-256={urlsafe_b64encode(sha256(body).digest()).decode()}":
            raise DigestMismatchError
        return body

    async def _store(self) -> ObjectStore:
        return await self._jetstream.object_store(self._bucket)
