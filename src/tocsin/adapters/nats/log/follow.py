"""Following a stream for ever through a consumer of one's own, made anew from the last seen sequence after any trouble."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

import structlog

from .... import subjects
from ....domain.events import Message, Recorded
from ....ports import Batch, Heading, Headings, LogUnavailable
from ....subjects import DecodeError, Stream
from ..client import wire
from ..client.connection import TROUBLE, Connection, Json
from ..client.names import Names
from ..consumers.pull import PullInbox
from ..consumers.received import Received

PORTION: Final = 2_000
"""Messages asked for ahead; the next portion is asked for when half of one is left."""
HEARTBEAT: Final = 2.0
"""Seconds between signs of life of an idle consumer; after twice that without one it is made anew."""
_REQUEST: Final = 30.0
_INACTIVE: Final = 60.0
"""Seconds after which the server drops the consumer of a follower that died."""
_PAUSE: Final = 0.5
_NANOSECONDS: Final = 1_000_000_000

_log = structlog.get_logger("tocsin.nats")


class _LostError(Exception):
    """The consumer is gone, or may be."""


class _Portion(Protocol):
    @property
    def caught_up(self) -> bool: ...
    @property
    def upto(self) -> int: ...


P = TypeVar("P", bound=_Portion)
Make = Callable[[Sequence[Received], bool, int], P]


def follow(
    connection: Connection, names: Names, stream: Stream, filters: Sequence[str], *, after: int | None
) -> AsyncIterator[Batch]:
    """What `ports.EventLog.follow` promises.

    After trouble in the midst of the last messages of each subject, some that are not the last may come too, in their
    order: what is folded from them in the end is the same.

    Raises:
        RefusedError: there is no such stream, or the filters overlap.
    """
    return read(connection, names, stream, filters, after, _batch, headers_only=False)


def watch(
    connection: Connection, names: Names, stream: Stream, filters: Sequence[str], *, after: int | datetime
) -> AsyncIterator[Headings]:
    """What `ports.EventLog.watch` promises.

    Raises:
        RefusedError: there is no such stream, or the filters overlap.
    """
    return read(connection, names, stream, filters, after, _headings, headers_only=True)


async def read(
    connection: Connection,
    names: Names,
    stream: Stream,
    filters: Sequence[str],
    after: int | datetime | None,
    make: Make[P],
    *,
    headers_only: bool,
) -> AsyncIterator[P]:
    """What matches, made into portions by `make`, for ever and through reconnects."""
    wire_filters = [wire_filter for relative in filters for wire_filter in names.filters(relative)]
    told_caught_up = False
    while True:
        consumer = _Consumer(connection, names, stream, wire_filters, after, headers_only=headers_only)
        try:
            upto = await consumer.create()
            if upto is not None:
                after = upto
                if not told_caught_up:
                    told_caught_up = True
                    yield make((), True, upto)  # noqa: FBT003 - as `Batch` has it
            while True:
                received = await consumer.take(is_expected=not told_caught_up)
                if not received:
                    continue
                portion = make(received, received[-1].pending == 0, received[-1].sequence)
                after, told_caught_up = portion.upto, told_caught_up or portion.caught_up
                yield portion
        except (_LostError, LogUnavailable) as error:
            _log.info("following again", action="follow-again", stream=stream, after=str(after), reason=str(error))
            await asyncio.sleep(_PAUSE)
        finally:
            await consumer.close()


class _Consumer:
    """One ephemeral consumer."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        stream: Stream,
        filters: Sequence[str],
        after: int | datetime | None,
        *,
        headers_only: bool,
    ) -> None:
        self._connection = connection
        self._names = names
        self._stream = names.stream(stream)
        self._filters = filters
        self._after = after
        self._headers_only = headers_only
        self._name = secrets.token_hex(8)
        self._inbox = PullInbox(connection, self._stream, self._name)
        self._asked = 0
        self._order = 0

    async def create(self) -> int | None:
        """Make it; the last sequence that is accounted for if nothing matches yet, else None."""
        # Asked before the consumer is made: whatever matches up to here, the consumer knows.
        last: int = (await self._connection.manage(f"STREAM.INFO.{self._stream}"))["state"]["last_seq"]
        verb = f"CONSUMER.CREATE.{self._stream}.{self._name}"
        made = await self._connection.manage(verb, json.dumps(self._request()).encode())
        await self._inbox.open()
        behind = self._after if isinstance(self._after, int) else 0
        return None if made["num_pending"] else max(last, behind)

    async def take(self, *, is_expected: bool) -> list[Received]:
        """Whatever is there; waits for the first, or for a sign of life without one.

        `is_expected`: something was still to come. Where nothing does, it may have been purged, and no message is the last.
        """
        inbox = self._inbox
        if self._asked <= PORTION // 2:
            await inbox.ask(PORTION, wait=_REQUEST, heartbeat=HEARTBEAT)
            self._asked += PORTION
        is_alive = await inbox.wait(2 * HEARTBEAT)
        self._read_statuses(inbox)
        if not inbox.messages and (is_expected or not is_alive):
            raise _LostError("nothing comes" if is_alive else "no heartbeat")
        return self._in_order(inbox)

    async def close(self) -> None:
        """Remove it, without waiting for the answer; the server would by itself after a while."""
        await self._inbox.close()
        with suppress(*TROUBLE):
            await self._connection.client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}")

    def _in_order(self, inbox: PullInbox) -> list[Received]:
        received = [Received(message, self._names) for message in inbox.messages]
        inbox.messages.clear()
        self._asked -= len(received)
        for one in received:
            self._order += 1
            if one.order != self._order:
                raise _LostError("a message was lost on the way")
        return received

    def _read_statuses(self, inbox: PullInbox) -> None:
        while inbox.statuses:
            status = inbox.statuses.popleft()
            if status == wire.REQUEST_TIMEOUT:
                self._asked = 0
            elif status != wire.HEARTBEAT:
                raise _LostError(f"status {status}")

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
        if self._headers_only:
            config["headers_only"] = True
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


def _headings(received: Sequence[Received], caught_up: bool, upto: int) -> Headings:  # noqa: FBT001 - as `Headings` has it
    return Headings([Heading(one.subject, one.sequence, one.time) for one in received], caught_up, upto)


def _batch(received: Sequence[Received], caught_up: bool, upto: int) -> Batch:  # noqa: FBT001 - as `Batch` has it
    recorded: list[Recorded[Message]] = []
    for one in received:
        try:
            message = subjects.decode(one.subject, one.body)
        except DecodeError as error:
            _log.warning("unreadable, left out", action="unreadable", sequence=one.sequence, error=str(error))
        else:
            recorded.append(Recorded(message, one.subject, one.sequence, one.time, one.message_id))
    return Batch(recorded, caught_up, upto)
