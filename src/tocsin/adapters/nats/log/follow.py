"""Endless readers of a stream, whose ephemeral consumers are recreated after errors.

A consumer reads one replica of the stream, which may lag. So with replicas a reader gets the newest matching sequence from
the leader, and has not caught up before it has received that message.

For each message of a consumer with several filters, the server compares all subjects of a block with them, until the end of
the block is near. So a reader far behind has a consumer for each filter, and merges their messages.
"""

import asyncio
import json
import secrets
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from .... import subjects, telemetry
from ....domain.events import Message, Recorded
from ....engine.report_lists import refuse_copy
from ....ports import Batch, Decode, LogUnavailable, StaleRead
from ....subjects import DecodeError, Stream
from ....telemetry import trace_ids
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..client.requests import CONNECTION_ERRORS
from ..consumers.pull import PullInbox, Received, RelativeNames

PORTION: Final = 2_000
"""The number of messages that are requested ahead; as many are requested again when half of it is left."""
PORTION_BYTES: Final = 16_777_216
"""The size of the messages of a request together; two requests may be under way.

A server disconnects a client that leaves 64 MB unread.
"""
FAR: Final = 2_000
"""The number of sequences, or of pending messages, behind the end from which a reader has one consumer for each filter."""
HEARTBEAT_INTERVAL_S: Final = 2.0
"""The interval of an idle consumer's heartbeats. After twice this time without one, it is recreated."""
_REQUEST: Final = 30.0
_INACTIVE: Final = 60.0
"""The server drops the consumer of a dead follower after this time."""
_PAUSE: Final = 0.5
_NANOSECONDS: Final = 1_000_000_000
_SEQUENCE: Final = attrgetter("sequence")

_log = telemetry.get_logger("tocsin.nats")


class _LostError(Exception):
    """The consumer is gone, or may be."""


class _MissingError(_LostError):
    """A message of the leader was removed, or the consumer's replica lags."""


class _Portion(Protocol):
    @property
    def caught_up(self) -> bool: ...
    @property
    def upto(self) -> int: ...


class WireNames(RelativeNames, Protocol):
    """The names of a stream and of its subjects on the wire."""

    def to_wire(self, relative: str, /) -> str:
        """Return the name of a subject on the wire."""

    def stream(self, stream: Stream, /) -> str:
        """Return the name of a stream on the server."""


READER: Final = ContextVar[Callable[[bool], None]]("reader", default=lambda _: None)
"""Takes whether the consumer of a reader in this context is made; False: it is lost, or cannot be made."""

P = TypeVar("P", bound=_Portion)
Make = Callable[[Sequence[Received], bool, int], P]


def follow(
    connection: Connection,
    names: Names,
    stream: Stream,
    filters: Sequence[str],
    *,
    after: int | None,
    decode: Decode = subjects.decode,
) -> AsyncGenerator[Batch, None]:
    """Follow a stream as `ports.InputLog.follow` specifies.

    After an error during the last messages of each subject, some older messages may follow too, in order. A fold of
    them ends in the same state.

    Raises:
        JetStreamError: the stream does not exist, or the filters overlap.
        LogUnavailable: the connection was closed.
    """
    return read(connection, names, stream, filters, after, partial(_batch, decode, names.own_streams()))


async def read(
    connection: Connection,
    names: WireNames,
    stream: Stream,
    filters: Sequence[str],
    after: int | datetime | None,
    make: Make[P],
    *,
    max_lag: float | None = None,
) -> AsyncGenerator[P, None]:
    """Yield portions of matching messages, built by `make`, across reconnects.

    Raises:
        StaleRead: for `max_lag` seconds, no consumer brought a message that the leader has.
        LogUnavailable: the connection was closed, or for `max_lag` seconds the server did not answer.
    """
    wire_filters = list(map(names.to_wire, filters))
    loop = asyncio.get_running_loop()
    has_caught_up, progress_at = False, loop.time()
    while True:
        consumer = _Consumer(connection, names, stream, wire_filters)
        try:
            backlog = _backlog(connection, names, stream, wire_filters, after)
            async with aclosing(backlog) as portions:
                async for received, upto in portions:
                    after, progress_at = upto, loop.time()
                    yield make(received, False, upto)  # noqa: FBT003 - `Batch` has the same flag
            may_leave = len(wire_filters) > 1 and after is not None  # else once the newest of each subject are read
            covered = await consumer.create(after)
            READER.get()(True)  # noqa: FBT003 - a callback
            if covered is not None:  # said after each backlog, because the recorder gathers messages until then
                after, has_caught_up = covered, True
                yield make((), True, covered)  # noqa: FBT003 - `Batch` has the same flag
            received = []
            while not (may_leave and received and received[-1].pending > FAR):
                if received := await consumer.take(is_expected=not has_caught_up):
                    portion = make(received, consumer.is_last(received[-1]), received[-1].sequence)
                    after, has_caught_up = portion.upto, has_caught_up or portion.caught_up
                    may_leave = len(wire_filters) > 1 and (may_leave or has_caught_up)
                    yield portion
                    progress_at = loop.time()
        except (_LostError, LogUnavailable) as error:
            READER.get()(False)  # noqa: FBT003 - a callback
            if connection.client.is_closed:  # it never comes back
                raise LogUnavailable(str(error)) from error
            if max_lag is not None and loop.time() - progress_at > max_lag:
                _give_up(stream, error)
            _log.info("reader restarted", action="follow-again", stream=stream, after=str(after), reason=str(error))
            await asyncio.sleep(_PAUSE)
        finally:
            await consumer.close()


def _give_up(stream: Stream, error: _LostError | LogUnavailable) -> None:
    if isinstance(error, _MissingError):
        raise StaleRead.of(f"the stream {stream}") from error
    if isinstance(error, LogUnavailable):
        raise error


async def _backlog(
    connection: Connection,
    names: WireNames,
    stream: Stream,
    filters: Sequence[str],
    after: int | datetime | None,
) -> AsyncGenerator[tuple[list[Received], int]]:
    """Yield messages of several filters, and the last sequence that they cover.

    It ends near the end of the stream.
    """
    if not isinstance(after, int) or len(filters) <= 1:
        return
    while (last := (await _state(connection, names.stream(stream)))[0]) - after > FAR:
        async with AsyncExitStack() as stack:
            consumers: list[_Consumer] = []
            for one in filters:
                consumer = _Consumer(connection, names, stream, (one,), parts=len(filters))
                stack.push_async_callback(consumer.close)
                if await consumer.create(after) is None:
                    consumers.append(consumer)
            async for received, upto in _merged(consumers, last):
                yield received, upto
        after = last
        yield [], last


async def _merged(consumers: Sequence["_Consumer"], last: int) -> AsyncIterator[tuple[list[Received], int]]:
    """Yield messages of consumers up to a sequence, and the last sequence covered."""
    unread: dict[_Consumer, list[Received]] = {consumer: [] for consumer in consumers}
    upto = 0
    while unread and upto < last:
        for consumer, received in unread.items():
            while not received:
                received.extend(await consumer.take(is_expected=True))
        ended = {consumer for consumer, received in unread.items() if consumer.is_last(received[-1])}
        upto = min([last, *(unread[consumer][-1].sequence for consumer in unread.keys() - ended)])
        portion: list[Received] = []
        for received in unread.values():
            known = bisect_right(received, upto, key=_SEQUENCE)
            portion += received[:known]
            del received[:known]
        yield sorted(portion, key=_SEQUENCE), upto
        unread = {consumer: received for consumer, received in unread.items() if received or consumer not in ended}


async def _state(connection: Connection, stream: str) -> tuple[int, bool]:
    """Return the last sequence of a stream, and whether it has replicas."""
    info = await connection.manage(f"STREAM.INFO.{stream}")
    return info["state"]["last_seq"], info["config"]["num_replicas"] > 1


class _Consumer:
    """One ephemeral consumer."""

    def __init__(
        self,
        connection: Connection,
        names: WireNames,
        stream: Stream,
        filters: Sequence[str],
        *,
        parts: int = 1,
    ) -> None:
        """`parts`: the number of consumers that share the bytes that a follower may request."""
        self._connection = connection
        self._names = names
        self._stream = names.stream(stream)
        self._filters = filters
        self._after: int | datetime | None = None
        self._portion_bytes = PORTION_BYTES // parts
        self._name = secrets.token_hex(8)
        self._inbox = PullInbox(connection, self._stream, self._name)
        self._requested = 0
        self._order = 0
        self._order_before = 0
        """The order of the newest message before the newest request."""
        self._is_full = False
        """A request has ended before a message that would exceed its bytes, and no other was sent since."""
        self._newest = 0
        """The sequence of the newest message that the consumer must bring, if the stream has replicas; 0: none."""

    async def create(self, after: int | datetime | None) -> int | None:
        """Create the consumer; return the last covered sequence if no message matches yet, else None."""
        self._after = after
        # Read before the newest match, so that the reader misses no match up to here.
        last, has_replicas = await _state(self._connection, self._stream)
        self._newest = await self._newest_match() if has_replicas else 0
        verb = f"CONSUMER.CREATE.{self._stream}.{self._name}"
        reply = await self._connection.manage(verb, json.dumps(self._request()).encode())
        await self._inbox.open()
        floor = self._after if isinstance(self._after, int) else 0
        return None if reply["num_pending"] or self._newest else max(last, floor)

    async def _newest_match(self) -> int:
        """Return the newest matching sequence after the start, read from the stream's leader.

        0: no message matches.
        """
        verb = f"STREAM.MSG.GET.{self._stream}"
        # For `>` the server looks at the last sequence alone, and finds nothing if that message was removed.
        requests = [(verb, json.dumps({"last_by_subj": matches}).encode()) for matches in self._filters or ["*.>"]]
        replies = await self._connection.find_each(requests, absent=wire.NO_MESSAGE_FOUND)
        return max(
            (message["seq"] for reply in replies if reply and self._is_wanted(message := reply["message"])), default=0
        )

    def _is_wanted(self, message: Json) -> bool:
        if isinstance(self._after, datetime):
            return datetime.fromisoformat(message["time"]) >= self._after
        return self._after is None or int(message["seq"]) > self._after

    def is_last(self, received: Received) -> bool:
        """Return whether the stream had no matching message after a received message."""
        return received.pending == 0 and received.sequence >= self._newest

    async def take(self, *, is_expected: bool) -> list[Received]:
        """Return the messages that arrived; wait for the first, or for a heartbeat.

        If a message `is_expected` but none arrives, it may have been purged, and then no message would be marked as the
        last. Or the consumer's replica lags, and that of the next consumer may not.
        """
        inbox = self._inbox
        if self._is_full and self._order == self._order_before:  # the next message alone is larger than a request
            await self._request_more(1, max_bytes=0)
        elif self._requested <= PORTION // 2:
            await self._request_more(PORTION, max_bytes=self._portion_bytes)
        is_alive = await inbox.wait(2 * HEARTBEAT_INTERVAL_S)
        is_used_up = self._read_statuses(inbox)
        if not inbox.messages and not is_alive:
            raise _LostError("no heartbeat")
        if not inbox.messages and is_expected and not is_used_up:
            raise _MissingError("no message arrives")
        return self._in_order(inbox)

    async def _request_more(self, limit: int, *, max_bytes: int) -> None:
        await self._inbox.request(limit, wait=_REQUEST, heartbeat=HEARTBEAT_INTERVAL_S, max_bytes=max_bytes)
        self._requested += limit
        self._is_full, self._order_before = False, self._order

    async def close(self) -> None:
        """Delete the consumer without waiting; otherwise the server would remove it after a while."""
        await self._inbox.close()
        with suppress(*CONNECTION_ERRORS):
            await self._connection.client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}")

    def _in_order(self, inbox: PullInbox) -> list[Received]:
        received = [Received(message, self._names) for message in inbox.messages]
        inbox.messages.clear()
        self._requested -= len(received)
        for message in received:
            self._order += 1
            if message.order != self._order:
                raise _LostError("a message was lost")
        return received

    def _read_statuses(self, inbox: PullInbox) -> bool:
        """Return whether a request has brought all that it may; the next request brings more."""
        self._requested -= inbox.unserved  # another request may still be under way
        inbox.unserved, is_used_up = 0, False
        while inbox.statuses:
            status = inbox.statuses.popleft()
            self._is_full = self._is_full or status == wire.FULL_REQUEST
            is_used_up = is_used_up or status in {wire.FULL_REQUEST, wire.COMPLETED_REQUEST}
            if status not in {wire.HEARTBEAT, wire.REQUEST_TIMEOUT, wire.FULL_REQUEST, wire.COMPLETED_REQUEST}:
                raise _LostError(f"status {status}")
        return is_used_up

    def _request(self) -> Json:
        config: Json = {
            "name": self._name,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(_INACTIVE * _NANOSECONDS),
            "deliver_policy": "last_per_subject",
        }
        if isinstance(self._after, datetime):
            since = self._after.astimezone(UTC).isoformat()
            config |= {"deliver_policy": "by_start_time", "opt_start_time": since}
        elif self._after is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._after + 1}
        filters = self._filters or ([">"] if self._after is None else [])
        if len(filters) == 1:
            config["filter_subject"] = filters[0]
        elif filters:
            config["filter_subjects"] = list(filters)
        return {"stream_name": self._stream, "config": config, "action": "create"}


def _batch(
    decode: Decode,
    own: Collection[str],
    received: Sequence[Received],
    caught_up: bool,  # noqa: FBT001 - `Batch` has the same flag
    upto: int,
) -> Batch:
    messages: list[Recorded[Message]] = []
    for message in received:
        is_copied = subjects.is_copied_input(message.subject, message.headers, own)
        try:
            recorded = subjects.recorded(
                message.subject,
                message.body,
                message.headers,
                message.sequence,
                message.time,
                read=refuse_copy if is_copied else decode,
            )
        except DecodeError as error:
            _log.warning(
                "message unreadable, skipped", action="unreadable", sequence=message.sequence, error=str(error)
            )
        else:
            trace_ids.note(recorded.message)
            messages.append(recorded)
    return Batch(messages, caught_up, upto, size=sum(len(message.body) for message in received))
