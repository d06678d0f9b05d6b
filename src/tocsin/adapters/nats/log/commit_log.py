"""A log of commits in JetStream, and the requests of its writers for a turn.

Each partition has a subject with its own guard.
"""

import base64
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic_core import from_json

from ....ports.commit_log import Bodies, CommitRefused, ReceiveTurn, StoredBody
from ....subjects import COMMITS, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.transport import Outgoing
from ..client.wire import stored_sequence, too_large
from ..consumers.pull import Received
from ..core_messages import CoreMessages
from .follow import read
from .writer import APPENDS

MAX_NAME_BYTES: Final = 300
"""Bytes of the name of a process that requests its turn."""
_LAST: Final = re.compile(r"wrong last sequence: (\d+)")


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of one stream with subjects that are on the wire already."""

    name: str

    def to_wire(self, relative: str, /) -> str:
        return relative

    def from_wire(self, wire: str, /) -> str:
        return wire

    def stream(self, stream: Stream, /) -> str:  # noqa: ARG002 - there is one
        return self.name


class NatsCommitLog:
    """Implement `ports.CommitLog`."""

    def __init__(self, connection: Connection, stream: str, prefix: str) -> None:
        """Use a stream that captures `<prefix>.<partition>`; both are names on the wire."""
        self._connection = connection
        self._stream = stream
        self._prefix = prefix

    def subject(self, partition: int) -> str:
        """Return the subject of a partition on the wire."""
        return f"{self._prefix}.{partition}"

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        """Store a commit under the guard. It is sent once."""
        message = Outgoing(self.subject(partition), body, {wire.EXPECTED_SEQUENCE: str(expect)})
        if (error := too_large(message, self._connection.client.max_payload)) is not None:
            raise error
        reply = await self._connection.request(message.subject, body, message.headers)
        refusal = from_json(reply.data).get("error")
        if refusal and refusal.get("err_code") in wire.WRONG_LAST_SEQUENCE:
            last = _LAST.search(refusal["description"])
            raise CommitRefused(partition, None if last is None else int(last[1]))
        sequence = stored_sequence(message.subject, reply.data)
        APPENDS.add(1, {"stream": COMMITS})
        return sequence

    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        request = json.dumps({"seq": after + 1, "next_by_subj": self.subject(partition)}).encode()
        answer = await self._connection.find(f"STREAM.MSG.GET.{self._stream}", request, absent=wire.NO_MESSAGE_FOUND)
        if answer is None:
            return None
        message: Json = answer["message"]
        body = base64.b64decode(message.get("data", ""))
        return StoredBody(message["seq"], datetime.fromisoformat(message["time"]), body)

    def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        names, filters = _Names(self._stream), [self.subject(partition)]
        return read(self._connection, names, Stream.LOG, filters, after, _bodies)

    async def now(self) -> datetime:
        answer = await self._connection.manage(f"STREAM.INFO.{self._stream}")
        return datetime.fromisoformat(answer["ts"])

    async def purge(self, partition: int, *, upto: int) -> None:
        subject = self.subject(partition)
        newest = json.dumps({"last_by_subj": subject}).encode()
        answer = await self._connection.find(f"STREAM.MSG.GET.{self._stream}", newest, absent=wire.NO_MESSAGE_FOUND)
        if answer is not None:
            kept = min(upto + 1, answer["message"]["seq"])
            request = json.dumps({"filter": subject, "seq": kept}).encode()
            await self._connection.manage(f"STREAM.PURGE.{self._stream}", request)


def _bodies(received: Sequence[Received], caught_up: bool, upto: int) -> Bodies:  # noqa: FBT001 - `Batch` has the same flag
    return Bodies([StoredBody(message.sequence, message.time, message.body) for message in received], caught_up, upto)


class NatsTurnChannel:
    """Implement `ports.TurnChannel`."""

    def __init__(self, connection: Connection, subject: str) -> None:
        """`subject`: the subject of the requests, on the wire. No stream may capture it."""
        self._messages = CoreMessages(connection)
        self._subject = subject

    async def ask(self, name: str) -> None:
        await self._messages.send(self._subject, name.encode())

    def asked(self, receive: ReceiveTurn) -> AbstractAsyncContextManager[None]:
        def pass_on(body: bytes) -> None:
            if len(body) <= MAX_NAME_BYTES:
                receive(body.decode(errors="replace"))

        return self._messages.bodies(self._subject, pass_on)
