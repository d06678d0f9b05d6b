"""Writes of the log: guarded events, inputs and timers, many at once."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import compress
from typing import Final, NamedTuple, cast, get_args

from .... import subjects, telemetry
from ....domain.events import Message, PublicEvent
from ....domain.formats import cloud_events
from ....ports import (
    Append,
    Delay,
    Publish,
    SequenceConflict,
    Write,
    Written,
    check_scopes,
    check_subject,
)
from ....subjects import Stream
from ... import decision_lines
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.transport import Headers, Outgoing
from .group_commits import Decision, GroupCommit, GroupCommits

_appends: Final = telemetry.meter().create_counter(
    "tocsin_appends", unit="{message}", description="Messages that this process stored, by stream."
)
_conflicts: Final = telemetry.meter().create_counter(
    "tocsin_append_conflicts",
    unit="{write}",
    description="Writes whose guard failed, by stream: another writer was faster.",
)
_PUBLIC: Final = frozenset(get_args(PublicEvent))
_LABELS: Final = {stream: {"stream": stream.value} for stream in Stream}


class LogWriter:
    """Stores writes in the streams of an installation."""

    def __init__(self, connection: Connection, names: Names, group_commit: GroupCommit) -> None:
        self._connection = connection
        self._names = names
        self._group_commits = GroupCommits(connection, names, group_commit)
        self._gathered: dict[Stream, _Gathered] = {}
        self.newest = dict.fromkeys(Stream, 0)
        """The last sequence that this writer stored in each stream."""

    async def store(self, write: Write) -> int:
        """Store a write of one message and return its sequence.

        What several tasks store in one stream at the same moment is one request, as the reports of a busy worker are.

        Raises:
            SequenceConflict: the guard failed.
            RequestRefused: the message is too large, or its subject is invalid.
            LogUnavailable: the log did not answer.
        """
        pending = _Pending(write, write.scope if isinstance(write, Append) else "")
        gathered = self._gathered.get(pending.stream)
        if gathered is None:
            gathered = _Gathered([], asyncio.create_task(self._store_gathered(pending.stream)))
            self._gathered[pending.stream] = gathered
        is_stored = gathered.storing.get_loop().create_future()
        gathered.writes.append((pending, is_stored))
        await is_stored
        if pending.error is not None:
            raise pending.error
        decision_lines.note(write, pending.sequences)
        return pending.sequences[-1]

    async def store_together(self, inputs: Sequence[Publish]) -> bool:
        """Store inputs of one stream as an atomic batch.

        False: an id was stored before, and nothing was stored now.

        Raises:
            RequestRefused: a message is too large, or its subject is invalid.
            LogUnavailable: the log did not answer, or the stream takes no batches.
        """
        if not await self._group_commits.store_all([self._input(write) for write in inputs]):
            return False
        stream = subjects.stream_of(inputs[0].subject)
        _appends.add(len(inputs), _LABELS[stream])
        decision_lines.note_traces(inputs)
        for write in inputs:
            decision_lines.write_lines(write, ())
        return True

    async def _store_gathered(self, stream: Stream) -> None:
        """Store what was gathered until this task began.

        A caller that is cancelled meanwhile does not affect the others.
        """
        gathered = self._gathered.pop(stream)
        waiting = [is_stored for _, is_stored in gathered.writes]
        try:
            writes = [pending for pending, _ in gathered.writes]
            await self._store_next(writes)
            _count(writes)
        except asyncio.CancelledError:
            for is_stored in waiting:
                is_stored.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - raised by the callers
            for is_stored in waiting:
                if not is_stored.done():
                    is_stored.set_exception(error)
        else:
            for is_stored in waiting:
                if not is_stored.done():
                    is_stored.set_result(None)

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Store several writes and return the result of each.

        What pays as an atomic batch is stored so. Of all others the first message is sent at once, then the second of
        each decision that has one, which expects the first, and so on.

        Raises:
            ValueError: two writes share a scope.
        """
        pending = [_Pending(write, scope) for write, scope in zip(writes, check_scopes(writes), strict=True)]
        await self._store_together(pending)
        wave = [decision for decision in pending if decision.is_open or decision.events is None]
        while wave:
            await self._store_next(wave)
            wave = [decision for decision in wave if decision.is_open]
        _count(pending)
        decision_lines.note_traces(writes)
        for decision in pending:
            if decision.sequences:
                decision_lines.write_lines(decision.write, decision.sequences)
        return [decision.written for decision in pending]

    async def _store_together(self, pending: Sequence["_Pending"]) -> None:
        """Store decisions by atomic batches where batches pay.

        The decisions of a refused batch stay open.
        """
        by_stream: dict[Stream, list[_Pending]] = defaultdict(list)
        for decision in pending:
            if decision.events is not None:
                by_stream[decision.stream].append(decision)
        for stream, decisions in by_stream.items():
            worthwhile = await self._group_commits.worthwhile(stream, [decision.size for decision in decisions])
            singles = list(compress(decisions, worthwhile))
            while singles:
                batched = [Decision(messages) for messages in self._messages_of(singles)]
                await self._group_commits.store(batched)
                for decision, result in zip(singles, batched, strict=True):
                    decision.sequences += result.sequences
                    if result.sequences:
                        self._learn(stream, result.sequences[-1])
                singles = [d for d, result in zip(singles, batched, strict=True) if d.is_open and result.sequences]

    def _messages_of(self, decisions: "list[_Pending]") -> list[list[Outgoing]]:
        """Return the messages that each decision lacks; a decision with an invalid message fails."""
        messages: list[list[Outgoing]] = []
        for decision in tuple(decisions):
            try:
                messages.append([self._event(decision, event) for event in decision.left])
            except Exception as error:  # noqa: BLE001 - returned to the caller; the other writes are not affected
                decision.error = error
                decisions.remove(decision)
        return messages

    async def _store_next(self, wave: Sequence["_Pending"]) -> None:
        """Store the next message of each write."""
        messages: list[Outgoing] = []
        senders: list[_Pending] = []
        for decision in wave:
            try:
                messages.append(self._message(decision))
            except Exception as error:  # noqa: BLE001 - returned to the caller; the other writes are not affected
                decision.error = error
            else:
                senders.append(decision)
        results = await self._connection.store_each(messages) if messages else []
        for decision, stored in zip(senders, results, strict=True):
            if isinstance(stored, Exception):
                decision.error = stored
                continue
            decision.sequences.append(stored)
            if decision.events is not None:
                self._learn(decision.stream, stored)

    def _learn(self, stream: Stream, sequence: int) -> None:
        self.newest[stream] = max(self.newest[stream], sequence)

    def _message(self, decision: "_Pending") -> Outgoing:
        write, events = decision.write, decision.events
        if events is not None:
            return self._event(decision, events[len(decision.sequences)])
        if isinstance(write, Publish):
            return self._input(write)
        assert isinstance(write, Delay)  # noqa: S101 - for the type checker
        schedule = {
            wire.SCHEDULE: f"@at {_rfc3339(write.until)}",
            wire.SCHEDULE_TARGET: self._names.to_wire(subjects.subject_of(write.timer)),
        }
        return self._outgoing(subjects.delay(write.timer), write.timer, schedule)

    def _input(self, write: Publish) -> Outgoing:
        lifetime = {} if write.ttl is None else {wire.TTL: str(math.ceil(write.ttl))}
        return self._outgoing(write.subject, write.message, {wire.MESSAGE_ID: write.message_id, **lifetime})

    def _event(self, decision: "_Pending", event: Message) -> Outgoing:
        headers = self._guard(decision)
        if type(event) in _PUBLIC:  # `isinstance` takes 0.9 us for every other event
            public = cloud_events.headers_of(cast("PublicEvent", event), f"/{self._names.root}")
            headers = {**headers, **public}
        return self._outgoing(subjects.subject_of(event), event, headers)

    def _guard(self, decision: "_Pending") -> Headers:
        return {
            wire.EXPECTED_SEQUENCE: str(decision.expect),
            wire.EXPECTED_SUBJECT: self._names.to_wire(decision.scope),
        }

    def _outgoing(self, subject: str, message: Message, headers: Headers) -> Outgoing:
        check_subject(subject)
        return Outgoing(self._names.to_wire(subject), message.encode(), headers)


def _count(writes: "Sequence[_Pending]") -> None:
    """Count the messages and conflicts of writes, once for each stream."""
    stored: dict[Stream, int] = {}
    for write in writes:
        stream = write.stream
        stored[stream] = stored.get(stream, 0) + len(write.sequences)
        if write.error is not None and isinstance(write.error, SequenceConflict):
            _conflicts.add(1, _LABELS[stream])
    for stream, count in stored.items():
        if count:
            _appends.add(count, _LABELS[stream])


class _Gathered(NamedTuple):
    """Writes of one moment, and the task that stores them."""

    writes: "list[tuple[_Pending, asyncio.Future[None]]]"
    storing: asyncio.Task[None]


class _Pending:
    """A write and what was stored of it."""

    __slots__ = ("error", "events", "scope", "sequences", "stream", "write")

    def __init__(self, write: Write, scope: str) -> None:
        self.write = write
        self.scope = scope
        self.sequences: list[int] = []
        self.error: Exception | None = None
        self.events: tuple[Message, ...] | None = None
        """The events of a decision; None: an input or a timer."""
        if isinstance(write, Append):
            self.events = write.events
            self.stream = subjects.stream_of(scope)
        else:
            self.stream = Stream.TIMERS if isinstance(write, Delay) else subjects.stream_of(write.subject)

    @property
    def size(self) -> int:
        return 1 if self.events is None else len(self.events)

    @property
    def left(self) -> Sequence[Message]:
        return () if self.events is None else self.events[len(self.sequences) :]

    @property
    def is_open(self) -> bool:
        return self.error is None and self.events is not None and len(self.sequences) < len(self.events)

    @property
    def expect(self) -> int:
        if self.sequences:
            return self.sequences[-1]
        return self.write.expect if isinstance(self.write, Append) else 0

    @property
    def written(self) -> Written:
        return Written(() if isinstance(self.write, Delay) else tuple(self.sequences), self.error)


def _rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
