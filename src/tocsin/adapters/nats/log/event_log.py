"""The event log on JetStream: guarded appends, scheduled messages, folds by direct get."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

from .... import subjects
from ....domain.events import Message, Recorded, Timer
from ....ports import Batch, Headings, Loaded, Progress
from ....subjects import DecodeError, Stream
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from .direct_get import DirectGet, Stored
from .follow import follow, watch

AT_ONCE: Final = 192
"""Filters of one request: the server answers up to 1,024 subjects, and few scopes hold more than five."""
NEAR: Final = 2_000
"""Messages that the server looks through, one after the other, sooner than it collects the last one of each subject."""


class NatsEventLog:
    """Implements `ports.EventLog`.

    Reads raise `DecodeError` where a message does not decode: a scope with a fact that nobody here can read must not be
    folded as if the fact were not there, since decisions would follow from a state that never was. Only `follow`, whose
    readers decide nothing, leaves such messages out.

    Any call raises `LogUnavailable` when the server does not answer.
    """

    def __init__(self, connection: Connection, names: Names) -> None:
        """The streams exist: `provision` made them."""
        self._connection = connection
        self._names = names
        self._streams = {stream: DirectGet(connection, names.stream(stream)) for stream in Stream}
        self._newest = dict.fromkeys(Stream, 0)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store a fact if the last sequence in its scope is `expect`; its sequence."""
        to_wire = self._names.to_wire
        scope = subjects.scope_of(fact)
        sequence = await self._connection.store(
            to_wire(subjects.subject_of(fact)),
            fact.encode(),
            {
                wire.EXPECTED_SEQUENCE: str(expect),
                wire.EXPECTED_SUBJECT: to_wire(scope),
            },
        )
        stream = subjects.stream_of(scope)
        self._newest[stream] = max(self._newest[stream], sequence)
        return sequence

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

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """The last message of each subject in a scope, oldest first; what is not asked for is not decoded.

        What came behind a sequence that is not far from the end of the log is all that travels. Further back, looking for it
        would cost the server more than to tell the whole scope does.
        """
        kind = subjects.stream_of(scope)
        stream, filters = self._streams[kind], self._names.filters(scope)
        if after and len(filters) == 1 and self._newest[kind] - after < NEAR:
            return [self._recorded(stored) for stored in await stream.newer(filters[0], after=after)]
        return [self._recorded(stored) for stored in await stream.last_of_each(filters) if stored.sequence > after]

    async def load_each(self, *scopes: str) -> Loaded:
        """What `load` says of each scope: one request for `AT_ONCE` of them."""
        stream = self._streams[subjects.stream_of(scopes[0])]
        filters = [name for scope in scopes for name in self._names.filters(scope)]
        portions = (filters[first : first + AT_ONCE] for first in range(0, len(filters), AT_ONCE))
        answers = await asyncio.gather(*map(stream.look, portions))
        facts: dict[str, list[Recorded[Message]]] = {scope: [] for scope in scopes}
        for found, _ in answers:
            for recorded in map(self._recorded, found):
                scope = recorded.subject if recorded.subject in facts else subjects.scope_of(recorded.message)
                facts[scope].append(recorded)
        return Loaded([facts[scope] for scope in scopes], min(upto for _, upto in answers))

    async def tail(self, scope: str) -> int:
        """The last sequence in a scope. Only the stream's leader answers this request."""
        verb = f"STREAM.MSG.GET.{self._names.stream(subjects.stream_of(scope))}"
        request = json.dumps({"last_by_subj": self._names.to_wire(scope)}).encode()
        told = await self._connection.look_up(verb, request, absent=wire.NO_MESSAGE_FOUND)
        return told["message"]["seq"] if told else 0

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
            DecodeError: the first of them; its `sequence` says where to go on. One further on ends the answer before it.
        """
        stream = self._streams[subjects.stream_of(subject)]
        filters = self._names.filters(subject)
        found = await asyncio.gather(*(stream.scan(name, after=after, limit=limit) for name in filters))
        stored = sorted((one for some in found for one in some), key=attrgetter("sequence"))
        messages: list[Recorded[Message]] = []
        for one in stored[:limit]:
            try:
                messages.append(self._recorded(one))
            except DecodeError:
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
        verb = f"CONSUMER.INFO.{self._names.stream(stream)}.{durable}"
        told = await self._connection.look_up(verb, absent=wire.CONSUMER_NOT_FOUND)
        if told is None:
            return None
        return Progress(told["ack_floor"]["stream_seq"], not told["num_pending"] and not told["num_ack_pending"])

    def _recorded(self, stored: Stored) -> Recorded[Message]:
        subject = self._names.from_wire(stored.subject)
        try:
            message = subjects.decode(subject, stored.body)
        except DecodeError as error:
            error.sequence = stored.sequence
            raise
        return Recorded(message, subject, stored.sequence, stored.time, stored.headers.get(wire.MESSAGE_ID))


def _rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
