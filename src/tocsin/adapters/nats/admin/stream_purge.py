"""What may leave the streams, and taking it out."""

import asyncio
import json
from collections.abc import AsyncIterator

from .... import subjects
from ....subjects import Stream
from ..client.connection import Connection, Json
from ..client.names import Names
from ..server.monitor import PURGES_SAFELY, Version


class NatsStreamPurge:
    """Implements `ports.StreamPurge`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """The streams exist: `provision` made them."""
        self._connection = connection
        self._names = names

    async def decided(self, stream: Stream) -> int:
        """The sequence up to which every consumer of a stream that acknowledges has dealt with all it was given.

        Those of others count too. One to which nothing is to be delivered and that owes no acknowledgement is past the end
        that the stream had before it was asked.
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
        """That the server is too old."""
        found = Version.of(self._connection.client)
        if found >= PURGES_SAFELY:
            return None
        return (
            f"nats-server {found} takes from others what they have still to read, with what is purged: "
            f"the archive needs {PURGES_SAFELY} or newer"
        )

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove what matches, up to a sequence."""
        name = self._names.stream(subjects.stream_of(subject))
        requests = [json.dumps({"filter": wire, "seq": upto + 1}) for wire in self._names.filters(subject)]
        purging = (self._connection.manage(f"STREAM.PURGE.{name}", request.encode()) for request in requests)
        await asyncio.gather(*purging)

    async def _consumers(self, name: str) -> AsyncIterator[Json]:
        offset = 0
        while True:
            asked = json.dumps({"offset": offset}).encode()
            answer = await self._connection.manage(f"CONSUMER.LIST.{name}", asked)
            listed = answer.get("consumers") or []
            for consumer in listed:
                yield consumer
            offset += len(listed)
            if not listed or offset >= answer["total"]:
                return
