"""The event log on JetStream: guarded appends, scheduled messages, reads by direct get.

A lagging replica may answer. A decision that is based on such a read is therefore appended under a guard.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final

from pydantic_core import to_json

from .... import subjects
from ....domain import lock
from ....domain.events import Message, Recorded, Timer
from ....ports import Append, Batch, Decode, Delay, Headings, Loaded, Progress, Publish, StaleRead, Write, Written
from ....subjects import DecodeError, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..client.wire import JetStreamError, Reply, status_of
from .follow import follow, watch
from .writer import GroupCommit, LogWriter

_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message with its subject on the wire."""

    subject: str
    sequence: int
    time: datetime
    headers: Mapping[str, str]
    body: bytes


class DirectGet:
    """The direct gets of one stream."""

    def __init__(self, connection: Connection, stream: str) -> None:
        """Read the stream that has this name on the wire."""
        self._connection = connection
        self._api = f"$JS.API.DIRECT.GET.{stream}"

    async def by_sequence(self, sequence: int) -> Stored | None:
        """Return the message of a sequence."""
        return _message_of(await self._connection.request(self._api, b'{"seq":%d}' % sequence))

    async def last(self, subject: str) -> Stored | None:
        """Return the newest message of a subject or filter."""
        if not all(subject.split(".")):
            return None  # the subject would be part of the request's own, and the server takes no empty token
        if "*" in subject or ">" in subject:
            return _message_of(await self._connection.request(self._api, _json({"last_by_subj": subject})))
        return _message_of(await self._connection.request(f"{self._api}.{subject}"))

    async def last_of_each(self, filters: Sequence[str]) -> list[Stored]:
        """Return the newest message of each matching subject, oldest first."""
        return (await self.newest_of_filters(filters))[0]

    async def newest_of_filters(self, filters: Sequence[str]) -> tuple[list[Stored], int]:
        """Return the newest message of each subject, and the last sequence that the reply covers.

        The sequence is 0 if the reply does not name it.
        """
        messages, end = await self._connection.request_many(self._api, _json({"multi_last": filters}))
        if status_of(end) == wire.TOO_MANY_SUBJECTS:
            return await self._in_parts(filters)
        _check(end)
        return _newest_of_each(map(_stored, messages)), int((end.headers or {}).get(wire.UP_TO, 0))

    async def newer(self, filter_subject: str, *, after: int) -> list[Stored]:
        """Return the newest message of each matching subject after a sequence, oldest first.

        The server scans all messages after the sequence: cheaper than `last_of_each` only near the end of the stream.
        """
        return _newest_of_each(await self.scan(filter_subject, after=after))

    async def _in_parts(self, filters: Sequence[str]) -> tuple[list[Stored], int]:
        """Split a request that matches more subjects than the server's limit of 1,024."""
        if len(filters) == 1:  # scan all messages; later messages replace earlier messages of the same subject
            return await self.newer(filters[0], after=0), 0
        half = len(filters) // 2
        parts = await asyncio.gather(self.newest_of_filters(filters[:half]), self.newest_of_filters(filters[half:]))
        newest = _newest_of_each(stored for messages, _ in parts for stored in messages)
        return newest, min(upto for _, upto in parts)

    async def scan(self, filter_subject: str, *, after: int = 0, limit: int | None = None) -> list[Stored]:
        """Return all matching messages after a sequence, oldest first, at most `limit`."""
        matches: list[Stored] = []
        while limit is None or len(matches) < limit:
            batch = _BATCH if limit is None else min(_BATCH, limit - len(matches))
            request = {"batch": batch, "seq": after + 1, "next_by_subj": filter_subject}
            messages, end = await self._connection.request_many(self._api, _json(request))
            _check(end)
            matches.extend(map(_stored, messages))
            if not messages or (end.headers or {}).get(wire.PENDING, "0") == "0":
                break
            after = matches[-1].sequence
        return matches


def _json(request: Json) -> bytes:
    return to_json(request)


def _newest_of_each(messages: Iterable[Stored]) -> list[Stored]:
    return sorted({stored.subject: stored for stored in messages}.values(), key=attrgetter("sequence"))


def _message_of(message: Reply) -> Stored | None:
    if status_of(message) is None:
        return _stored(message)
    _check(message)
    return None


def _check(end: Reply) -> None:
    status = status_of(end)
    if status not in {wire.NO_MESSAGES, wire.END_OF_BATCH}:
        raise JetStreamError("direct get", f"{status} {(end.headers or {}).get(wire.DESCRIPTION, '')}")


def _stored(message: Reply) -> Stored:
    headers = message.headers or {}
    return Stored(
        subject=headers[wire.SUBJECT],
        sequence=int(headers[wire.SEQUENCE]),
        time=datetime.fromisoformat(headers[wire.TIME_STAMP]),
        headers=headers,
        body=message.data,
    )


FILTERS_PER_REQUEST: Final = 192
"""The number of filters in one request: the server answers up to 1,024 subjects, and few scopes have more than five."""
SCAN_LIMIT: Final = 2_000
"""Up to this number of messages, a scan is cheaper for the server than a query for the last message of each subject."""


class NatsEventLog:
    """Implement `ports.EventLog`.

    Reads raise `DecodeError` if a message does not decode. A scope with an unreadable fact must not be folded without
    the fact, because decisions would follow from a state that never existed. Only `follow` skips such messages, because
    its readers decide nothing.

    Any call raises `LogUnavailable` if the server does not answer.
    """

    def __init__(self, connection: Connection, names: Names, *, group_commit: GroupCommit = "auto") -> None:
        """Use the streams that `provision` created."""
        self._connection = connection
        self._names = names
        self._streams = {stream: DirectGet(connection, names.stream(stream)) for stream in Stream}
        self._writer = LogWriter(connection, names, group_commit)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the server accepts, with its headers (`max_payload`)."""
        return self._connection.client.max_payload

    # --- writing -----------------------------------------------------------------------------------------------------

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store a fact if the last sequence of its scope is `expect`; return its sequence."""
        return await self._writer.store(Append((fact,), expect))

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        """Store an input once within the duplicate window; return the sequence of the first copy."""
        return await self._writer.store(Publish(subject, message, message_id, ttl))

    async def delay(self, timer: Timer, *, until: datetime) -> None:
        """Let the server store `timer` under its own subject at `until`, never before."""
        await self._writer.store(Delay(timer, until))

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Store several writes and return the result of each."""
        return await self._writer.write(writes)

    async def remove(self, subject: str, sequence: int) -> None:
        """Remove a message of a subject's stream, unless it is gone."""
        verb = f"STREAM.MSG.DELETE.{self._names.stream(subjects.stream_of(subject))}"
        try:
            await self._connection.manage(verb, json.dumps({"seq": sequence, "no_erase": True}).encode())
        except JetStreamError as error:
            if error.err_code != wire.MESSAGE_GONE:
                raise

    # --- reading -----------------------------------------------------------------------------------------------------

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """Return the messages that are enough to fold a scope, oldest first.

        Only facts after `after` are returned and decoded. Near the end of the log, only they are transferred. Further
        back, the scan for them would cost the server more than a reply with the whole scope.
        """
        kind = subjects.stream_of(scope)
        stream, wire_filter = self._streams[kind], self._names.to_wire(scope)
        if after and self._writer.newest[kind] - after < SCAN_LIMIT:
            newer = stream.scan if subjects.is_lock(scope) else stream.newer
            return [self._recorded(stored) for stored in await newer(wire_filter, after=after)]
        newest = [self._recorded(s) for s in await stream.last_of_each([wire_filter]) if s.sequence > after]
        return await self._complete(scope, newest, after)

    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        """Return the facts of each scope as `load` does, with few requests."""
        known = after or {}
        stream = self._streams[subjects.stream_of(scopes[0])]
        filters = list(map(self._names.to_wire, scopes))
        portions = (
            filters[first : first + FILTERS_PER_REQUEST] for first in range(0, len(filters), FILTERS_PER_REQUEST)
        )
        replies = await asyncio.gather(*map(stream.newest_of_filters, portions))
        facts: dict[str, list[Recorded[Message]]] = {scope: [] for scope in scopes}
        for messages, _ in replies:
            for recorded in map(self._recorded, messages):
                scope = recorded.subject if recorded.subject in facts else subjects.scope_of(recorded.message)
                if recorded.sequence > known.get(scope, 0):
                    facts[scope].append(recorded)
        incomplete = [scope for scope, newest in facts.items() if lock.first_needed(newest)]
        complete = await asyncio.gather(*(self._complete(s, facts[s], known.get(s, 0)) for s in incomplete))
        facts.update(zip(incomplete, complete, strict=True))
        return Loaded([facts[scope] for scope in scopes], min(upto for _, upto in replies))

    async def _complete(self, scope: str, newest: list[Recorded[Message]], after: int) -> list[Recorded[Message]]:
        """Complete the newest events of a lock by all from the oldest that waits."""
        first = lock.first_needed(newest)
        if not first:
            return newest
        stream = self._streams[subjects.stream_of(scope)]
        events = list(map(self._recorded, await stream.scan(self._names.to_wire(scope), after=max(after, first - 1))))
        if not events or events[-1].sequence < newest[-1].sequence:
            raise StaleRead.of(scope)  # another replica answered, and it lags behind
        return [*(recorded for recorded in newest if recorded.sequence < first), *events]

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

    async def has_newer(self, *filters: str, after: int) -> bool:
        """Return whether a matching message was stored after a sequence, as the stream's leader knows."""
        requests = [
            (
                f"STREAM.MSG.GET.{self._names.stream(subjects.stream_of(filter_))}",
                json.dumps({"seq": after + 1, "next_by_subj": self._names.to_wire(filter_)}).encode(),
            )
            for filter_ in filters
        ]
        return any(await self._connection.find_each(requests, absent=wire.NO_MESSAGE_FOUND))

    async def now(self) -> datetime:
        """Return the time of the leader of the ledger's stream."""
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(Stream.LEDGER)}")
        return datetime.fromisoformat(answer["ts"])

    async def last(self, subject: str) -> Recorded[Message] | None:
        """Return the newest message of a subject or filter."""
        stream = self._streams[subjects.stream_of(subject)]
        newest = await stream.last(self._names.to_wire(subject))
        return None if newest is None else self._recorded(newest)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        """Return the message of a sequence in the stream of a subject."""
        stored = await self._streams[subjects.stream_of(subject)].by_sequence(sequence)
        return None if stored is None else self._recorded(stored)

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Return up to `limit` matching messages after a sequence, oldest first.

        Only an empty result means that there are no more.

        Raises:
            DecodeError: the first message is unreadable; the error's `sequence` says where to continue. A later
                unreadable message ends the result before it.
        """
        stream = self._streams[subjects.stream_of(subject)]
        messages: list[Recorded[Message]] = []
        for message in await stream.scan(self._names.to_wire(subject), after=after, limit=limit):
            try:
                messages.append(self._recorded(message))
            except DecodeError:
                if not messages:
                    raise
                break
        return messages

    def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncIterator[Batch]:
        """Yield all matching messages without an end; skip unreadable messages."""
        return follow(self._connection, self._names, stream, filters, after=after, decode=decode)

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncIterator[Headings]:
        """Yield the headings of new messages without an end; the server sends no bodies."""
        return watch(self._connection, self._names, stream, filters, after=after)

    async def progress(self, stream: Stream, durable: str) -> Progress | None:
        """Return a durable's progress, as the consumer's leader reports it."""
        verb = f"CONSUMER.INFO.{self._names.stream(stream)}.{durable}"
        reply = await self._connection.find(verb, absent=wire.CONSUMER_NOT_FOUND)
        if reply is None:
            return None
        return Progress(reply["ack_floor"]["stream_seq"], not reply["num_pending"] and not reply["num_ack_pending"])

    def _recorded(self, stored: Stored) -> Recorded[Message]:
        subject = self._names.from_wire(stored.subject)
        try:
            message = subjects.decode(subject, stored.body)
        except DecodeError as error:
            error.sequence = stored.sequence
            raise
        return Recorded(message, subject, stored.sequence, stored.time, stored.headers.get(wire.MESSAGE_ID))
