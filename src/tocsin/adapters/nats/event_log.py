"""The event log on JetStream: guarded appends, scheduled messages, folds by direct get."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from operator import attrgetter

from ... import subjects
from ...domain.events import Message, Recorded, Timer
from ...ports import Batch, Headings, Progress
from ...subjects import Stream, Unreadable
from . import wire
from .connection import Connection, RefusedError
from .direct_get import DirectGet, Stored
from .follow import follow, watch
from .naming import Names


class NatsEventLog:
    """Implements `ports.EventLog`.

    Reads raise `Unreadable` where a message does not decode: a scope with a fact that nobody here can read must not be
    folded as if the fact were not there, since decisions would follow from a state that never was. Only `follow`, whose
    readers decide nothing, leaves such messages out.

    Any call raises `LogUnavailable` when the server does not answer.
    """

    def __init__(self, connection: Connection, names: Names) -> None:
        """The streams exist: `provision` made them."""
        self._connection = connection
        self._names = names
        self._streams = {stream: DirectGet(connection, names.stream(stream)) for stream in Stream}

    # --- writing -----------------------------------------------------------------------------------------------------

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store a fact if the last sequence in its scope is `expect`; its sequence."""
        to_wire = self._names.to_wire
        return await self._connection.store(
            to_wire(subjects.subject_of(fact)),
            fact.encode(),
            {
                wire.EXPECTED_SEQUENCE: str(expect),
                wire.EXPECTED_SUBJECT: to_wire(subjects.scope_of(fact)),
            },
        )

    async def publish(self, subject: str, message: Message, *, message_id: str) -> int:
        """Store an input once within the duplicate window; the sequence of the first."""
        return await self._connection.store(
            self._names.to_wire(subject), message.encode(), {wire.MESSAGE_ID: message_id}
        )

    async def delay(self, timer: Timer, *, until: datetime, scope: str, expect: int) -> None:
        """Have the server store `timer` under its own subject at `until`, never before."""
        to_wire = self._names.to_wire
        await self._connection.store(
            to_wire(subjects.delay(timer)),
            timer.encode(),
            {
                wire.SCHEDULE: f"@at {_rfc3339(until)}",
                wire.SCHEDULE_TARGET: to_wire(subjects.subject_of(timer)),
                wire.EXPECTED_SEQUENCE: str(expect),
                wire.EXPECTED_SUBJECT: to_wire(scope),
            },
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    async def load(self, scope: str) -> list[Recorded[Message]]:
        """The last message of each subject in a scope, oldest first."""
        stream = self._streams[subjects.stream_of(scope)]
        return [self._recorded(stored) for stored in await stream.last_of_each(self._names.filters(scope))]

    async def load_each(self, *scopes: str) -> list[list[Recorded[Message]]]:
        """What `load` says of each scope: one request for all."""
        stream = self._streams[subjects.stream_of(scopes[0])]
        filters = [name for scope in scopes for name in self._names.filters(scope)]
        found = [self._recorded(stored) for stored in await stream.last_of_each(filters)]
        return [[one for one in found if subjects.covers(scope, one.subject)] for scope in scopes]

    async def tail(self, scope: str) -> int:
        """The last sequence in a scope. Only the stream's leader answers this request."""
        verb = f"STREAM.MSG.GET.{self._names.stream(subjects.stream_of(scope))}"
        request = json.dumps({"last_by_subj": self._names.to_wire(scope)}).encode()
        try:
            sequence: int = (await self._connection.manage(verb, request))["message"]["seq"]
        except RefusedError as error:
            if error.code == wire.NO_MESSAGE_FOUND:
                return 0
            raise
        return sequence

    async def now(self) -> datetime:
        """The time at which the leader of the ledger's stream answers."""
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(Stream.LEDGER)}")
        return datetime.fromisoformat(answer["ts"])

    async def last(self, subject: str) -> Recorded[Message] | None:
        """The newest message of a subject or filter."""
        stream = self._streams[subjects.stream_of(subject)]
        found = await asyncio.gather(*(stream.last(name) for name in self._names.filters(subject)))
        newest = max(filter(None, found), key=attrgetter("sequence"), default=None)
        return None if newest is None else self._recorded(newest)

    async def get(self, stream: Stream, sequence: int) -> Recorded[Message] | None:
        """One message by its sequence."""
        stored = await self._streams[stream].by_sequence(sequence)
        return None if stored is None else self._recorded(stored)

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Up to `limit` matching messages behind `after`, oldest first. Only an empty answer means that there is no more.

        Raises:
            Unreadable: the first of them; its `sequence` says where to go on. One further on ends the answer before it.
        """
        stream = self._streams[subjects.stream_of(subject)]
        filters = self._names.filters(subject)
        found = await asyncio.gather(*(stream.scan(name, after=after, limit=limit) for name in filters))
        stored = sorted((one for some in found for one in some), key=attrgetter("sequence"))
        messages: list[Recorded[Message]] = []
        for one in stored[:limit]:
            try:
                messages.append(self._recorded(one))
            except Unreadable:
                if not messages:
                    raise
                break
        return messages

    def follow(self, stream: Stream, *filters: str, after: int | None) -> AsyncIterator[Batch]:
        """Everything that matches, for ever; unreadable messages are left out."""
        return follow(self._connection, self._names, stream, filters, after=after)

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncIterator[Headings]:
        """That something was stored, for ever; the server sends no bodies."""
        return watch(self._connection, self._names, stream, filters, after=after)

    async def progress(self, stream: Stream, durable: str) -> Progress | None:
        """How far a durable has got, by the word of the consumer's leader."""
        try:
            told = await self._connection.manage(f"CONSUMER.INFO.{self._names.stream(stream)}.{durable}")
        except RefusedError as error:
            if error.code == wire.CONSUMER_NOT_FOUND:
                return None
            raise
        return Progress(told["ack_floor"]["stream_seq"], not told["num_pending"] and not told["num_ack_pending"])

    def _recorded(self, stored: Stored) -> Recorded[Message]:
        subject = self._names.from_wire(stored.subject)
        try:
            message = subjects.decode(subject, stored.body)
        except Unreadable as error:
            error.sequence = stored.sequence
            raise
        return Recorded(message, subject, stored.sequence, stored.time, stored.headers.get(wire.MESSAGE_ID))


def _rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
