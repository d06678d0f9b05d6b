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
    """Implement `ports.InputLog`.

    Reads raise `DecodeError` if a message does not decode; `follow` skips it.

    Any call raises `LogUnavailable` if the server does not answer.
    """

    def __init__(self, connection: Connection, names: Names) -> None:
        """Use the streams that `provision` created."""
        self._connection = connection
        self._names = names
        self._streams = {stream: DirectGet(connection, names.stream(stream)) for stream in Stream}
        self._writer = LogWriter(connection, names)

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store an event if the last sequence of its scope is `expect`; return its sequence."""
        return await self._writer.store(Append((fact,), expect))

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        """Store an input once within the duplicate window; return the sequence of the first copy."""
        return await self._writer.store(Publish(subject, message, message_id, ttl))

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        """Store all inputs, or none of them."""
        if await self._writer.store_together(inputs):
            return
        if not all(await self.tails(*(write.subject for write in inputs))):
            raise RepeatedInput(f"{inputs[0].subject}: a batch repeats an input")

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Store several messages and return the result of each."""
        return await self._writer.write(writes)

    async def remove(self, subject: str, sequence: int) -> None:
        """Remove a message of a subject's stream, unless it is gone."""
        verb = f"STREAM.MSG.DELETE.{self._names.stream(subjects.stream_of(subject))}"
        try:
            await self._connection.manage(verb, json.dumps({"seq": sequence, "no_erase": True}).encode())
        except JetStreamError as error:
            if error.err_code != wire.MESSAGE_GONE:
                raise

    async def load(self, scope: str) -> list[Recorded[Message]]:
        """Return the last message of each subject of a scope, oldest first."""
        return list((await self.load_each(scope)).facts[0])

    async def load_each(self, *scopes: str) -> Loaded:
        """Return what `load` returns for each scope, with few requests."""
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
        """Return the last sequence in a scope, read from the stream's leader."""
        (sequence,) = await self.tails(scope)
        return sequence

    async def tails(self, *scopes: str) -> list[int]:
        """Return the last sequence in each scope."""
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
        """Return the last sequence of a stream, read from its leader."""
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}")
        return int(answer["state"]["last_seq"])

    async def replicas(self) -> int:
        """Return the configured number of servers that keep the log of commits."""
        return int((await self._info_of_commits())["config"]["num_replicas"])

    async def now(self) -> datetime:
        """Return the time of the leader of the log of commits."""
        return datetime.fromisoformat((await self._info_of_commits())["ts"])

    async def _info_of_commits(self) -> Json:
        return await self._connection.manage(f"STREAM.INFO.{self._names.commits_stream}")

    async def last(self, subject: str) -> Recorded[Message] | None:
        """Return the newest message of a subject or filter."""
        newest = await self._of(subject).last(self._names.to_wire(subject))
        return None if newest is None else self._recorded(newest)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        """Return the message of a sequence in the stream of a subject."""
        stored = await self._of(subject).by_sequence(sequence)
        return None if stored is None else self._recorded(stored)

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Return up to `limit` matching messages after a sequence, oldest first.

        Only an empty result means that there are no more.

        Raises:
            DecodeError: the first message is unreadable; the error's `sequence` says where to continue. A later
                unreadable message ends the result before it.
        """
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
        """Yield all matching messages without an end; skip unreadable messages."""
        return follow(self._connection, self._names, stream, filters, after=after, decode=decode)

    def _of(self, subject: str) -> DirectGet:
        return self._streams[subjects.stream_of(subject)]

    def _recorded(self, stored: Stored) -> Recorded[Message]:
        subject = self._names.from_wire(stored.subject)
        return subjects.recorded(subject, stored.body, stored.headers, stored.sequence, stored.time, read=read_message)
