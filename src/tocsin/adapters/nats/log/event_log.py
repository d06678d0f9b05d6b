"""The streams beside the log of commits on JetStream: inputs, output and notifications.

Any replica may answer a direct get, and it may lag. The leader of a stream answers `tails` and `end`.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Final

from .... import subjects
from ....domain.events import Message, Recorded
from ....engine.report_lists import read_message
from ....ports import Append, Batch, Decode, Loaded, Publish, RepeatedInput, Write, Written
from ....subjects import DecodeError, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..client.wire import JetStreamError
from .direct_get import DirectGet, Stored
from .follow import follow
from .writer import LogWriter

READ_BYTES: Final = 8_388_608
"""The size of the messages after which a read ends, before its limit of messages."""


class NatsEventLog:
    """Implement `ports.InputLog`; `follow` skips messages that do not decode."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._streams = {stream: DirectGet(connection, names.stream(stream)) for stream in Stream}
        self._writer = LogWriter(connection, names)

    async def append(self, fact: Message, *, expect: int) -> int:
        return await self._writer.store(Append((fact,), expect))

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        return await self._writer.store(Publish(subject, message, message_id, ttl))

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        if await self._writer.store_together(inputs):
            return
        if not all(await self.tails(*(write.subject for write in inputs))):
            raise RepeatedInput(f"{inputs[0].subject}: a batch repeats an input")

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        return await self._writer.write(writes)

    async def remove(self, subject: str, sequence: int) -> None:
        verb = f"STREAM.MSG.DELETE.{self._names.stream(subjects.stream_of(subject))}"
        try:
            await self._connection.manage(verb, json.dumps({"seq": sequence, "no_erase": True}).encode())
        except JetStreamError as error:
            if error.err_code != wire.MESSAGE_GONE:
                raise

    async def load(self, scope: str) -> list[Recorded[Message]]:
        return list((await self.load_each(scope)).facts[0])

    async def load_each(self, *scopes: str) -> Loaded:
        filters = [*map(self._names.to_wire, dict.fromkeys(scopes))]
        recorded = [*map(self._recorded, await self._of(scopes[0]).last_of_each(filters))]
        by_subject = {one.subject: one for one in recorded}
        facts = [
            [one for one in recorded if subjects.matches(scope, one.subject)]
            if subjects.REST in scope or subjects.ANY in scope
            else [one for one in (by_subject.get(scope),) if one is not None]
            for scope in scopes
        ]
        return Loaded(facts, 0)

    async def tail(self, scope: str) -> int:
        (sequence,) = await self.tails(scope)
        return sequence

    async def tails(self, *scopes: str) -> list[int]:
        requests = [
            (
                f"STREAM.MSG.GET.{self._names.stream(subjects.stream_of(scope))}",
                json.dumps({"last_by_subj": self._names.to_wire(scope)}).encode(),
            )
            for scope in scopes
        ]
        replies = await self._connection.find_each(requests, absent=wire.NO_MESSAGE_FOUND)
        return [reply["message"]["seq"] if reply else 0 for reply in replies]

    async def end(self, stream: Stream) -> int:
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}")
        return int(answer["state"]["last_seq"])

    async def replicas(self) -> int:
        return int((await self._info_of_commits())["config"]["num_replicas"])

    async def now(self) -> datetime:
        return datetime.fromisoformat((await self._info_of_commits())["ts"])

    async def _info_of_commits(self) -> Json:
        return await self._connection.manage(f"STREAM.INFO.{self._names.commits_stream}")

    async def last(self, subject: str) -> Recorded[Message] | None:
        newest = await self._of(subject).last(self._names.to_wire(subject))
        return None if newest is None else self._recorded(newest)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        stored = await self._of(subject).by_sequence(sequence)
        return None if stored is None else self._recorded(stored)

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Return messages before an unreadable one; raise its error if it is the first."""
        messages: list[Recorded[Message]] = []
        for message in await self._of(subject).scan(
            self._names.to_wire(subject), after=after, limit=limit, max_bytes=READ_BYTES
        ):
            try:
                messages.append(self._recorded(message))
            except DecodeError:
                if not messages:
                    raise
                break
        return messages

    def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        return follow(self._connection, self._names, stream, filters, after=after, decode=decode)

    def _of(self, subject: str) -> DirectGet:
        return self._streams[subjects.stream_of(subject)]

    def _recorded(self, stored: Stored) -> Recorded[Message]:
        subject = self._names.from_wire(stored.subject)
        return subjects.recorded(subject, stored.body, stored.headers, stored.sequence, stored.time, read=read_message)
