"""Writes beside the log of commits: inputs and events of notifications, many at once."""

import asyncio
import itertools
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from .... import subjects, telemetry
from ....ports import (
    Append,
    LogUnavailable,
    Publish,
    RequestRefused,
    Write,
    Written,
    check_scopes,
    check_size,
    check_subject,
)
from ....subjects import Stream
from ... import decision_lines
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.transport import Outgoing

PATIENCE_S: Final = 15.0
"""How long a batch of inputs is sent again while there is no reply."""
FIRST_PAUSE_S: Final = 0.1
APPENDS: Final = telemetry.meter().create_counter(
    "tocsin_appends", unit="{message}", description="Messages that this process stored, by stream."
)
_LABELS: Final = {stream: {"stream": stream.value} for stream in Stream}


class LogWriter:
    """Stores messages in the streams of an installation."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._gathered: dict[Stream, _Gathered] = {}
        self._batch_ids = (f"{prefix}{number}" for prefix in [secrets.token_hex(8)] for number in itertools.count(1))

    async def store(self, write: Write) -> int:
        """Store a message and return its sequence.

        What several tasks store in one stream at the same moment is one request, as the reports of a busy worker are.

        Raises:
            SequenceConflict: the guard failed.
            RequestRefused: the message is too large, or its subject is invalid.
            LogUnavailable: the log did not answer.
        """
        stream = _stream_of(write)
        gathered = self._gathered.get(stream)
        if gathered is None:
            gathered = _Gathered([], [], asyncio.create_task(self._store_gathered(stream)))
            self._gathered[stream] = gathered
        stored: asyncio.Future[int | Exception] = gathered.storing.get_loop().create_future()
        gathered.writes.append(write)
        gathered.waiting.append(stored)
        result = await stored
        if isinstance(result, Exception):
            raise result
        decision_lines.note(write, (result,))
        return result

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Store several messages in one request and return the result of each.

        Raises:
            ValueError: two writes share a scope.
        """
        check_scopes(writes)
        results = await self._store_each(writes)
        decision_lines.note_traces(writes)
        written: list[Written] = []
        for write, result in zip(writes, results, strict=True):
            if isinstance(result, Exception):
                written.append(Written((), result))
            else:
                decision_lines.write_lines(write, (result,))
                written.append(Written((result,)))
        return written

    async def store_together(self, inputs: Sequence[Publish]) -> bool:
        """Store inputs of one stream as an atomic batch.

        It is sent again until there is a reply.

        False: an id was stored before, perhaps by a batch whose reply was lost; nothing is stored now.

        Raises:
            RequestRefused: a message is too large, or its subject is invalid.
            LogUnavailable: the log did not answer, or the stream takes no batches.
        """
        messages = [self._message(write) for write in inputs]
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PATIENCE_S, FIRST_PAUSE_S
        while (error := await self._batch_error(messages)) is not None:
            if isinstance(error, wire.JetStreamError) and error.err_code == wire.BATCH_REPEATS_ID:
                return False
            if loop.time() + pause >= deadline or not _may_pass(error):
                raise error
            await asyncio.sleep(pause)
            pause *= 2
        APPENDS.add(len(inputs), _LABELS[_stream_of(inputs[0])])
        decision_lines.note_traces(inputs)
        for write in inputs:
            decision_lines.write_lines(write, ())
        return True

    async def _batch_error(self, messages: Sequence[Outgoing]) -> LogUnavailable | RequestRefused | None:
        """Send a batch once; return why it is not stored."""
        try:
            await self._connection.store_together(list(self._marked(messages)))
        except (LogUnavailable, RequestRefused) as error:
            return error
        return None

    def _marked(self, messages: Sequence[Outgoing]) -> Iterator[Outgoing]:
        batch_id = next(self._batch_ids)
        for number, message in enumerate(messages, 1):
            headers = (message.headers or {}) | {wire.BATCH_ID: batch_id, wire.BATCH_SEQUENCE: str(number)}
            if number == len(messages):
                headers[wire.BATCH_COMMIT] = "1"
            yield message._replace(headers=headers)

    async def _store_gathered(self, stream: Stream) -> None:
        """Store what was gathered until this task began.

        A caller that is cancelled meanwhile does not affect the others.
        """
        gathered = self._gathered.pop(stream)
        try:
            results: Sequence[int | Exception] = await self._store_each(gathered.writes)
        except asyncio.CancelledError:
            for stored in gathered.waiting:
                stored.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - raised by the callers
            results = [error] * len(gathered.waiting)
        for stored, result in zip(gathered.waiting, results, strict=True):
            if not stored.done():
                stored.set_result(result)

    async def _store_each(self, writes: Sequence[Write]) -> list[int | Exception]:
        """Store messages in one request; return the sequence or the error of each."""
        results: list[int | Exception | None] = []
        messages: list[Outgoing] = []
        for write in writes:
            try:
                messages.append(self._message(write))
            except Exception as error:  # noqa: BLE001 - returned to the caller; the other writes are not affected
                results.append(error)
            else:
                results.append(None)
        stored = iter(await self._connection.store_each(messages) if messages else ())
        done = [next(stored) if result is None else result for result in results]
        pairs = zip(writes, done, strict=True)
        counts = Counter(_stream_of(write) for write, result in pairs if not isinstance(result, Exception))
        for stream, count in counts.items():
            APPENDS.add(count, _LABELS[stream])
        return done

    def _message(self, write: Write) -> Outgoing:
        match write:
            case Publish(subject, message, message_id, ttl):
                lifetime = {} if ttl is None else {wire.TTL: str(math.ceil(ttl))}
                headers = {wire.MESSAGE_ID: message_id, **lifetime}
            case Append((message,), expect):
                subject = subjects.subject_of(message)
                headers = {
                    wire.EXPECTED_SEQUENCE: str(expect),
                    wire.EXPECTED_SUBJECT: self._names.to_wire(write.scope),
                }
            case _:
                raise ValueError("a write beside the log has one message")
        check_subject(subject)
        check_size(subject, body := message.encode())
        return Outgoing(self._names.to_wire(subject), body, headers)


class _Gathered(NamedTuple):
    """Writes of one moment, and the task that stores them."""

    writes: list[Write]
    waiting: "list[asyncio.Future[int | Exception]]"
    storing: asyncio.Task[None]


def _may_pass(error: Exception) -> bool:
    """Return whether a batch without success may be stored later."""
    if isinstance(error, wire.JetStreamError):
        return error.err_code == wire.TOO_MANY_BATCHES
    return isinstance(error, LogUnavailable) and not isinstance(error, wire.StreamFull)


def _stream_of(write: Write) -> Stream:
    match write:
        case Append():
            return subjects.stream_of(write.scope)
        case Publish():
            return subjects.stream_of(write.subject)
