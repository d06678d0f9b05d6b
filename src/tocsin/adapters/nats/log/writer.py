"""Writes of the log: guarded events, inputs and timers, many at once."""

from collections.abc import Sequence
from datetime import UTC, datetime

from .... import subjects
from ....domain.events import Message
from ....ports import Append, Delay, Publish, Write, Written, check_scopes, check_subject
from ....subjects import Stream
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.transport import Headers, Outgoing


class LogWriter:
    """Stores writes in the streams of an installation."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self.newest = dict.fromkeys(Stream, 0)
        """The last sequence that this writer stored in each stream."""

    async def store(self, write: Write) -> int:
        """Store a write of one message and return its sequence.

        Raises:
            SequenceConflict: the guard failed.
            RequestRefused: the message is too large, or its subject is invalid.
            LogUnavailable: the log did not answer.
        """
        pending = _Pending(write, "" if isinstance(write, Publish) else write.scope)
        await self._store_next([pending])
        if pending.error is not None:
            raise pending.error
        return pending.sequences[-1]

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Store several writes and return the result of each.

        The first message of each write is sent at once, then the second of each decision that has one, which expects
        the first, and so on.

        Raises:
            ValueError: two writes share a scope.
        """
        pending = [_Pending(write, scope) for write, scope in zip(writes, check_scopes(writes), strict=True)]
        wave = pending
        while wave:
            await self._store_next(wave)
            wave = [decision for decision in wave if decision.is_open]
        return [decision.written for decision in pending]

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
        for decision, result in zip(senders, results, strict=True):
            if isinstance(result, Exception):
                decision.error = result
                continue
            decision.sequences.append(result)
            if isinstance(decision.write, Append):
                stream = subjects.stream_of(decision.scope)
                self.newest[stream] = max(self.newest[stream], result)

    def _message(self, decision: "_Pending") -> Outgoing:
        write = decision.write
        if isinstance(write, Append):
            event = write.events[len(decision.sequences)]
            return self._outgoing(subjects.subject_of(event), event, self._guard(decision))
        if isinstance(write, Publish):
            return self._outgoing(write.subject, write.message, {wire.MESSAGE_ID: write.message_id})
        schedule = {
            wire.SCHEDULE: f"@at {_rfc3339(write.until)}",
            wire.SCHEDULE_TARGET: self._names.to_wire(subjects.subject_of(write.timer)),
        }
        return self._outgoing(subjects.delay(write.timer), write.timer, schedule | self._guard(decision))

    def _guard(self, decision: "_Pending") -> Headers:
        return {
            wire.EXPECTED_SEQUENCE: str(decision.expect),
            wire.EXPECTED_SUBJECT: self._names.to_wire(decision.scope),
        }

    def _outgoing(self, subject: str, message: Message, headers: Headers) -> Outgoing:
        check_subject(subject)
        return Outgoing(self._names.to_wire(subject), message.encode(), headers)


class _Pending:
    """A write and what was stored of it."""

    __slots__ = ("error", "scope", "sequences", "write")

    def __init__(self, write: Write, scope: str) -> None:
        self.write = write
        self.scope = scope
        self.sequences: list[int] = []
        self.error: Exception | None = None

    @property
    def is_open(self) -> bool:
        return self.error is None and isinstance(self.write, Append) and len(self.sequences) < len(self.write.events)

    @property
    def expect(self) -> int:
        if self.sequences:
            return self.sequences[-1]
        return 0 if isinstance(self.write, Publish) else self.write.expect

    @property
    def written(self) -> Written:
        return Written(() if isinstance(self.write, Delay) else tuple(self.sequences), self.error)


def _rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
