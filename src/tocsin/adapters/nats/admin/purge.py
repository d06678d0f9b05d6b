"""Removal of archived messages, or of everything that an installation has stored."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from .... import subjects
from ....subjects import Bucket, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..client.wire import JetStreamError
from ..server.process import PURGES_SAFELY, Version


class NatsStreamPurge:
    """Implement `ports.StreamPurge`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """Use the streams that `provision` created."""
        self._connection = connection
        self._names = names

    async def decided(self, stream: Stream) -> int:
        """Return the sequence up to which every acknowledging consumer of a stream is done.

        Foreign consumers count too. A consumer without a backlog is done up to the end that the stream had before the
        query.
        """
        name = self._names.stream(stream)
        end: int = (await self._connection.manage(f"STREAM.INFO.{name}"))["state"]["last_seq"]
        floors = [end]
        async for consumer in self._consumers(name):
            is_idle = not consumer["num_pending"] and not consumer["num_ack_pending"]
            if consumer["config"]["ack_policy"] != "none" and not is_idle:
                floors.append(consumer["ack_floor"]["stream_seq"])
        return min(floors)

    def obstacle(self) -> str | None:
        """Return the reason if the server is too old to purge."""
        version = Version.of(self._connection.client)
        if version >= PURGES_SAFELY:
            return None
        return (
            f"nats-server {version} would also hide unread messages from other consumers: "
            f"the archive needs {PURGES_SAFELY} or newer"
        )

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove matching messages up to a sequence."""
        name = self._names.stream(subjects.stream_of(subject))
        requests = [
            json.dumps({"filter": wire_subject, "seq": upto + 1}) for wire_subject in self._names.filters(subject)
        ]
        purges = (self._connection.manage(f"STREAM.PURGE.{name}", request.encode()) for request in requests)
        await asyncio.gather(*purges)

    async def _consumers(self, name: str) -> AsyncIterator[Json]:
        offset = 0
        while True:
            request = json.dumps({"offset": offset}).encode()
            reply = await self._connection.manage(f"CONSUMER.LIST.{name}", request)
            consumers = reply.get("consumers") or []
            for consumer in consumers:
                yield consumer
            offset += len(consumers)
            if not consumers or offset >= reply["total"]:
                return


KEPT: Final = frozenset({Bucket.INSTALLATION, Bucket.LEADER, Bucket.TOKENS})


async def wipe(connection: Connection, names: Names) -> None:
    """Purge every stream and bucket.

    Sequences continue, so that readers which remember an old sequence notice.

    Raises:
        LogUnavailable: the server does not answer.
    """
    buckets = [names.bucket_stream(bucket) for bucket in Bucket if bucket not in KEPT]
    await asyncio.gather(*(_purge(connection, stream) for stream in (*map(names.stream, Stream), *buckets)))


async def _purge(connection: Connection, stream: str) -> None:
    try:
        await connection.manage(f"STREAM.PURGE.{stream}")
    except JetStreamError as error:
        if error.err_code != wire.STREAM_NOT_FOUND:
            raise
