"""The event log on JetStream: guarded appends, scheduled messages, reads by direct get.

A lagging replica may answer a direct get. A decision that is based on such a read is therefore appended under a guard. The
leader answers `tail`, `tails`, `end` and `has_newer`, after it has stored what this process received.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from .... import subjects
from ....domain import lock
from ....domain.events import Message, Recorded, Timer
from ....ports import (
    Append,
    Batch,
    Decode,
    Delay,
    Headings,
    Loaded,
    Progress,
    Publish,
    RepeatedInput,
    StaleRead,
    Write,
    Written,
)
from ....subjects import DecodeError, Stream
from ....telemetry.foreign import ForeignMessages
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.wire import JetStreamError
from .direct_get import FILTERS_PER_REQUEST, DirectGet, Stored
from .follow import follow, watch
from .group_commits import GroupCommit
from .leader_lag import LeaderLag, ReceivedMarks
from .message_reader import MessageReader
from .set_aside import SetAside, skips_set_aside
from .writer import LogWriter

SCAN_LIMIT: Final = 2_000
"""Up to this number of messages, a scan is cheaper for the server than a query for the last message of each subject."""
READ_BYTES: Final = 8_388_608
"""The size of the messages after which a read ends, before its limit of messages."""
_MAX_SCANS: Final = 20
_SCAN_PAUSE_S: Final = 0.25
"""Seconds before another replica may answer, or the same with newer messages."""


class NatsEventLog:
    """Implement `ports.EventLog`.

    Reads raise `DecodeError` if a message does not decode. A scope with an unreadable fact must not be folded without
    the fact, because decisions would follow from a state that never existed. Only `follow` skips such messages, because
    its readers decide nothing. A fact that an operator set aside is a `Foreign`.

    Any call raises `LogUnavailable` if the server does not answer.
    """

    def __init__(
        self,
        connection: Connection,
        names: Names,
        *,
        group_commit: GroupCommit = "auto",
        foreign: ForeignMessages | None = None,
        marks: ReceivedMarks | None = None,
    ) -> None:
        """Use the streams that `provision` created.

        `foreign` records the foreign messages that reads meet. `marks` are those of the process, which its durables note too.
        """
        self._connection = connection
        self._names = names
        self._streams = {stream: DirectGet(connection, names.stream(stream)) for stream in Stream}
        self._messages = MessageReader(names, foreign or ForeignMessages())
        self.set_aside = SetAside(self._streams[Stream.LEDGER], names, self._messages)
        self._writer = LogWriter(connection, names, group_commit)
        self._marks = marks or ReceivedMarks()
        self._lag = LeaderLag(self._marks, self._read_end)

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

    async def publish_together(self, inputs: Sequence[Publish]) -> None:
        """Store all inputs, or none of them."""
        if await self._writer.store_together(inputs):
            return
        if not all(await self.tails(*(write.subject for write in inputs))):
            raise RepeatedInput(f"{inputs[0].subject}: a batch repeats an input")

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

    async def _await_leaders(self, scopes: Iterable[str]) -> None:
        streams = dict.fromkeys(map(subjects.stream_of, scopes))
        newest = self._writer.newest
        await asyncio.gather(*(self._lag.await_leader(stream, stored=newest[stream]) for stream in streams))

    @skips_set_aside
    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """Return the messages that are enough to fold a scope, oldest first.

        Only facts after `after` are returned and decoded. Near the end of the log, only they are transferred. Further
        back, the scan for them would cost the server more than a reply with the whole scope.
        """
        kind = subjects.stream_of(scope)
        stream, wire_filter = self._streams[kind], self._names.to_wire(scope)
        if after and self._writer.newest[kind] - after < SCAN_LIMIT:
            newer = stream.scan if subjects.is_lock(scope) else stream.newer
            return _after(after, await self._messages.read(stream, await newer(wire_filter, after=after)))
        newest = [stored for stored in await stream.last_of_each([wire_filter]) if stored.sequence > after]
        return await self._complete(scope, _after(after, await self._messages.read(stream, newest)), after)

    @skips_set_aside
    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        """Return the facts of each scope as `load` does, with few requests.

        If `after` names all scopes of a request, only messages after the oldest of these sequences are transferred.
        """
        known = after or {}
        stream = self._streams[subjects.stream_of(scopes[0])]
        wanted = list(dict.fromkeys(scopes))
        portions = (wanted[first : first + FILTERS_PER_REQUEST] for first in range(0, len(wanted), FILTERS_PER_REQUEST))
        replies = await asyncio.gather(
            *(
                stream.newest_of_filters(
                    list(map(self._names.to_wire, portion)), after=min(known.get(scope, 0) for scope in portion)
                )
                for portion in portions
            )
        )
        facts: dict[str, list[Recorded[Message]]] = {scope: [] for scope in scopes}
        for messages, _ in replies:
            for recorded in await self._messages.read(stream, messages):
                subject = recorded.subject
                scope = (
                    subject if subject in facts else subjects.guard_of(subject) or subjects.scope_of(recorded.message)
                )
                if scope not in facts:
                    scope = subjects.of_any_job(scope)
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
        since = max(after, first - 1)
        events = [self._messages.recorded(s) for s in await stream.scan(self._names.to_wire(scope), after=since)]
        if not events or events[-1].sequence < newest[-1].sequence:
            raise StaleRead.of(scope)  # another replica answered, and it lags behind
        return [*(recorded for recorded in newest if recorded.sequence < first), *events]

    async def tail(self, scope: str) -> int:
        """Return the last sequence in a scope, read from the stream's leader."""
        (sequence,) = await self.tails(scope)
        return sequence

    async def tails(self, *scopes: str) -> list[int]:
        """Return the last sequence in each scope."""
        await self._await_leaders(scopes)
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
        return await self._lag.end(stream)

    async def _read_end(self, stream: Stream) -> int:
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}")
        return int(answer["state"]["last_seq"])

    async def replicas(self, stream: Stream) -> int:
        """Return the number of servers that keep a stream, as its leader has it configured."""
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}")
        replicas: int = answer["config"]["num_replicas"]
        return replicas

    async def has_newer(self, *filters: str, after: int, upto: int | None = None) -> bool:
        """Return whether a matching message was stored between two sequences, as the stream's leader knows."""
        await self._await_leaders(filters)
        requests = [
            (
                f"STREAM.MSG.GET.{self._names.stream(subjects.stream_of(filter_))}",
                json.dumps({"seq": after + 1, "next_by_subj": self._names.to_wire(filter_)}).encode(),
            )
            for filter_ in filters
        ]
        found = await self._connection.find_each(requests, absent=wire.NO_MESSAGE_FOUND)
        return any(answer and (upto is None or answer["message"]["seq"] <= upto) for answer in found)

    async def now(self) -> datetime:
        """Return the time of the leader of the ledger's stream."""
        answer = await self._connection.manage(f"STREAM.INFO.{self._names.stream(Stream.LEDGER)}")
        return datetime.fromisoformat(answer["ts"])

    @skips_set_aside
    async def last(self, subject: str) -> Recorded[Message] | None:
        """Return the newest message of a subject or filter."""
        stream = self._streams[subjects.stream_of(subject)]
        wire_filter = self._names.to_wire(subject)
        newest = await stream.last(wire_filter)
        if newest is None:
            return None
        recorded = self._messages.recorded(newest)
        if not subjects.is_foreign(recorded):
            return recorded
        return await self._messages.before(stream, wire_filter, newest.sequence)

    @skips_set_aside
    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        """Return the message of a sequence in the stream of a subject."""
        stored = await self._streams[subjects.stream_of(subject)].by_sequence(sequence)
        return None if stored is None else self._messages.recorded(stored)

    @skips_set_aside
    async def read(
        self, subject: str, *, after: int = 0, limit: int = 1_000, confirm: bool = False
    ) -> list[Recorded[Message]]:
        """Return up to `limit` matching messages after a sequence, oldest first.

        Only an empty result means that there are no more.

        Raises:
            StaleRead: with `confirm`, the replicas that were read lag.
            DecodeError: the first message is unreadable; the error's `sequence` says where to continue. A later
                unreadable message ends the result before it.
        """
        stream = self._streams[subjects.stream_of(subject)]
        messages: list[Recorded[Message]] = []
        while not messages:
            portion = await stream.scan(self._names.to_wire(subject), after=after, limit=limit, max_bytes=READ_BYTES)
            if not portion and confirm:
                portion = await self._confirmed(subject, after, limit)
            if not portion:
                break
            for message in portion:
                try:
                    recorded = self._messages.recorded(message)
                except DecodeError:
                    if not messages:
                        raise
                    break
                if not subjects.is_foreign(recorded):
                    messages.append(recorded)
            after = portion[-1].sequence
        return messages

    async def _confirmed(self, subject: str, after: int, limit: int) -> list[Stored]:
        """Scan again unless the leader has no match either."""
        stream = self._streams[subjects.stream_of(subject)]
        for _ in range(_MAX_SCANS):
            if not await self.has_newer(subject, after=after):
                return []
            await asyncio.sleep(_SCAN_PAUSE_S)
            if portion := await stream.scan(
                self._names.to_wire(subject), after=after, limit=limit, max_bytes=READ_BYTES
            ):
                return portion
        raise StaleRead.of(subject)

    def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        """Yield all matching messages without an end; skip unreadable messages."""
        noted, note = self._messages.noted, partial(self._marks.note, stream)
        return follow(
            self._connection, self._names, stream, filters, after=after, noted=noted, note=note, decode=decode
        )

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncGenerator[Headings, None]:
        """Yield the headings of new messages without an end; the server sends no bodies."""
        note = partial(self._marks.note, stream)
        return watch(self._connection, self._names, stream, filters, after=after, note=note)

    async def progress(self, stream: Stream, durable: str) -> Progress | None:
        """Return a durable's progress, as the consumer's leader reports it."""
        verb = f"CONSUMER.INFO.{self._names.stream(stream)}.{durable}"
        reply = await self._connection.find(verb, absent=wire.CONSUMER_NOT_FOUND)
        if reply is None:
            return None
        return Progress(reply["ack_floor"]["stream_seq"], not reply["num_pending"] and not reply["num_ack_pending"])


def _after(sequence: int, messages: Sequence[Recorded[Message]]) -> list[Recorded[Message]]:
    return [recorded for recorded in messages if recorded.sequence > sequence]
