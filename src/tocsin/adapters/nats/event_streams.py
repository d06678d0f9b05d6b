"""Durables for the events of triggers, and the queue of requests to webhooks, on JetStream."""

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from ...ports import Delivery, EventDurable, EventReader, LogUnavailable, Progress, RequestRefused
from ...subjects import Stream
from .client import wire
from .client.connection import Connection
from .client.names import Names
from .client.transport import Outgoing
from .client.wire import JetStreamError
from .consumers.greedy_batches import fetch, hand_back
from .consumers.pull import NatsDelivery, PullInbox

ACK_WAIT_S: Final = 30.0
MAX_ACK_PENDING: Final = 1_000
MAX_BYTES: Final = 4_194_304
"""Bytes of messages that are read together. A larger message is read alone."""
_NANOSECONDS: Final = 1_000_000_000


class NatsEventStreams:
    """Implement `ports.EventStreams`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._own_streams = names.own_streams()
        self._prefix = names.trigger_durable("")

    @property
    def log_stream(self) -> str:
        return self._names.stream(Stream.LOG)

    @property
    def webhook_stream(self) -> str:
        return self._names.webhook_stream

    def webhook(self, durable: str) -> str:
        return self._names.webhook(durable)

    async def create(self, durable: EventDurable) -> None:
        name = self._names.trigger_durable(durable.name)
        config: dict[str, Any] = {
            "name": name,
            "durable_name": name,
            "deliver_policy": "all" if durable.is_queue else "new",
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT_S * _NANOSECONDS),
            "max_ack_pending": MAX_ACK_PENDING,
            "max_deliver": -1,
        }
        verb = f"CONSUMER.CREATE.{durable.stream}.{name}"
        if len(durable.subjects) == 1 and durable.stream not in self._own_streams:
            # The server compares this token with the filter, so that permissions can name the subject.
            verb += f".{durable.subjects[0]}"
            config["filter_subject"] = durable.subjects[0]
        else:
            config["filter_subjects"] = [self._names.to_wire(subject) for subject in durable.subjects]
        request = {"stream_name": durable.stream, "config": config, "action": "create"}
        try:
            await self._connection.manage(verb, json.dumps(request).encode())
        except JetStreamError as error:
            if error.err_code != wire.CONSUMER_EXISTS:
                raise RequestRefused(f"{durable.stream}: {error}", str(error)) from error

    async def remove(self, stream: str, name: str) -> None:
        verb = f"CONSUMER.DELETE.{stream}.{self._names.trigger_durable(name)}"
        await self._connection.find(verb, absent=wire.CONSUMER_NOT_FOUND)

    async def names(self, stream: str) -> Collection[str]:
        pages = self._connection.pages(f"CONSUMER.NAMES.{stream}")
        names = [name async for page in pages for name in page.get("consumers") or ()]
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]

    async def progress(self, durable: EventDurable) -> Progress:
        verb = f"CONSUMER.INFO.{durable.stream}.{self._names.trigger_durable(durable.name)}"
        try:
            found = await self._connection.find(verb, absent=wire.CONSUMER_NOT_FOUND)
        except JetStreamError as error:
            if error.err_code != wire.STREAM_NOT_FOUND:
                raise
            found = None
        if found is None:
            raise LogUnavailable(f"{durable.stream}: the durable {durable.name} is gone")
        return Progress(found["ack_floor"]["stream_seq"], not found["num_pending"] and not found["num_ack_pending"])

    @asynccontextmanager
    async def reading(self, durable: EventDurable) -> AsyncIterator[EventReader]:
        inbox = PullInbox(self._connection, durable.stream, self._names.trigger_durable(durable.name))
        reader = _Reader(self._connection, self._names, inbox)
        await inbox.open()
        try:
            yield reader
        finally:
            await inbox.close()
            await hand_back([*reader.taken, *inbox.messages])


class _Reader:
    """Implement `ports.EventReader`."""

    def __init__(self, connection: Connection, names: Names, inbox: PullInbox) -> None:
        self._connection = connection
        self._names = names
        self._inbox = inbox
        self.taken: list[Any] = []
        """The taken messages that were not settled before the last take."""

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        try:
            messages = await fetch(self._inbox, limit, wait, max_bytes=MAX_BYTES)
        except LogUnavailable:  # the next message may be larger than that
            messages = await fetch(self._inbox, 1, wait)
        self.taken = [*(message for message in self.taken if not message.is_acked), *messages]
        return [NatsDelivery(message, self._names, self._connection.transport) for message in messages]


class NatsWebhookQueue:
    """Implement `ports.WebhookQueue`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def store(self, durable: str, body: bytes, headers: Mapping[str, str], *, message_id: str) -> None:
        subject, headers = self._names.webhook(durable), {**headers, wire.MESSAGE_ID: message_id}
        (reply,) = await self._connection.request_each([Outgoing(subject, body, headers)])
        result = wire.result_of(subject, reply)
        if isinstance(result, wire.StreamFull):  # requests that wait for room would hold connections of the API
            raise RequestRefused(str(result), wire.FULL) from result
        if isinstance(result, LogUnavailable):  # the server may have a leader soon; the id makes a second copy harmless
            await self._connection.store(subject, body, headers)
        elif isinstance(result, Exception):
            raise result
