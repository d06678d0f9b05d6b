"""Task queues of workers: the durables of queues, read by pull requests."""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from .... import subjects
from ....ports import Delivery, LogUnavailable, QueueStatus
from ....subjects import Stream
from ..admin.resources import ensure_executors
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from .pull import NatsDelivery, PullInbox

_LONGEST_REQUEST_S: Final = 5.0
"""A lost connection can swallow a request; it is noticed after this time."""
_SHORTEST_REQUEST_S: Final = 0.01
"""A request without an expiry could stay with the server and take messages that no caller waits for."""
_END_GRACE_S: Final = 1.0
"""The server may report the end of a request this much later."""
_QUIET_TIME_S: Final = 0.1
"""After this time without a message, the server is assumed to wait for acknowledgements."""


class NatsDurable:
    """One reader of a durable; any number of readers may share it."""

    def __init__(self, connection: Connection, names: Names, stream: Stream, durable: str) -> None:
        """Use a durable that `provision` created."""
        self._names = names
        self._durable = durable
        self._transport = connection.transport
        self._inbox = PullInbox(connection, names.stream(stream), durable)
        self._is_open = False
        self._lock = asyncio.Lock()

    @property
    def has_some(self) -> bool:
        """Messages arrived after the last caller gave up; the next call returns them at once."""
        return bool(self._inbox.messages)

    async def take(self, limit: int, *, wait: float) -> Sequence[NatsDelivery]:
        """Return up to `limit` messages; wait up to `wait` seconds for the first.

        Callers take turns.

        Raises:
            LogUnavailable: there is no connection, or the durable does not exist.
        """
        async with self._lock:
            if not self._is_open:
                await self._inbox.open()
                self._is_open = True
            now = asyncio.get_running_loop().time
            until = now() + wait
            while not await self._fetch(limit, wait=min(until - now(), _LONGEST_REQUEST_S)) and now() < until:
                pass
            messages = self._inbox.messages
            return [
                NatsDelivery(messages.popleft(), self._names, self._transport) for _ in range(min(limit, len(messages)))
            ]

    async def close(self) -> None:
        """Stop, and hand back messages that arrived after the last caller gave up."""
        async with self._lock:
            await self._inbox.close()
            self._is_open = False
            while self._inbox.messages:
                await NatsDelivery(self._inbox.messages.popleft(), self._names, self._transport).nak(0)

    async def _fetch(self, limit: int, *, wait: float) -> bool:
        """Request missing messages; return whether there are any at the end of the request."""
        inbox = self._inbox
        if len(inbox.messages) >= limit:
            return True
        inbox.statuses.clear()
        await inbox.request(limit - len(inbox.messages), wait=max(wait, _SHORTEST_REQUEST_S), is_greedy=True)
        patience = wait + _END_GRACE_S
        while len(inbox.messages) < limit and await inbox.wait(patience, beyond=len(inbox.messages)):
            if inbox.statuses:
                break
            patience = _QUIET_TIME_S
        if wire.NO_RESPONDERS in inbox.statuses:
            raise LogUnavailable(
                f"durable {self._durable} does not answer: there is no connection, or it does not exist. Run `tocsin init`"
            )
        return bool(inbox.messages)


class NatsTaskQueue:
    """Implement `ports.TaskQueue` for one queue."""

    def __init__(self, connection: Connection, names: Names, queue: str = subjects.DEFAULT_QUEUE) -> None:
        """Use the durable of a queue, which `provision` created."""
        self._durable = NatsDurable(connection, names, Stream.LOG, subjects.executor_durable(queue))

    @property
    def has_some(self) -> bool:
        """Tasks arrived after the last caller gave up; the next call returns them at once."""
        return self._durable.has_some

    async def take(self, limit: int, *, wait: float) -> Sequence[NatsDelivery]:
        """Return up to `limit` tasks; wait up to `wait` seconds for the first.

        Raises:
            LogUnavailable: there is no connection, or the queue does not exist.
        """
        return await self._durable.take(limit, wait=wait)

    async def close(self) -> None:
        """Stop, and hand back unread tasks."""
        await self._durable.close()


LONGEST_PAUSE: Final = timedelta(days=36_500)
_SWITCH_CHECK_INTERVAL_S: Final = 0.02
_SWITCH_CHECKS: Final = 250


class NatsTaskQueues:
    """Implement `ports.TaskQueues`."""

    def __init__(self, connection: Connection, names: Names, *, ack_wait: float) -> None:
        """Redeliver tasks after `ack_wait` seconds without an acknowledgement or a heartbeat."""
        self._connection = connection
        self._names = names
        self._ack_wait = ack_wait
        self._open: dict[str, SharedQueue] = {}

    async def open(self, queue: str) -> "SharedQueue":
        """Return a queue, and create its durable if it does not exist.

        Raises:
            ProvisionError: the durable cannot be created.
            LogUnavailable: the server does not answer.
        """
        if queue not in self._open:
            await ensure_executors(self._connection, self._names, (queue,), ack_wait=self._ack_wait)
            self._open[queue] = SharedQueue(partial(NatsTaskQueue, self._connection, self._names, queue))
        return self._open[queue]

    async def pause(self, queue: str) -> None:
        """Stop deliveries by the consumer's own pause, which survives restarts and applies to all readers."""
        await self.open(queue)
        until = (datetime.now(UTC) + LONGEST_PAUSE).isoformat().replace("+00:00", "Z")
        await self._switch(queue, {"pause_until": until}, is_paused=True)

    async def resume(self, queue: str) -> None:
        """Let the server deliver again."""
        await self.open(queue)
        await self._switch(queue, {}, is_paused=False)

    async def standing(self, queue: str) -> QueueStatus | None:
        """Return the state of a queue, as the consumer's leader reports it."""
        verb = f"CONSUMER.INFO.{self._stream}.{subjects.executor_durable(queue)}"
        reply = await self._connection.find(verb, absent=wire.CONSUMER_NOT_FOUND)
        if reply is None:
            return None
        return QueueStatus(queue, bool(reply.get("paused")), reply["num_pending"], reply["num_ack_pending"])

    async def names(self) -> Sequence[str]:
        """Return the names of all queues in alphabetical order."""
        durables: list[str] = []
        while True:
            reply = await self._connection.manage(
                f"CONSUMER.NAMES.{self._stream}", json.dumps({"offset": len(durables)}).encode()
            )
            names: list[str] = reply["consumers"] or []
            durables += names
            if not names or len(durables) >= reply["total"]:
                return sorted(queue for queue in map(subjects.queue_of, durables) if queue is not None)

    async def close(self) -> None:
        """Hand unread tasks back."""
        for queue in self._open.values():
            await queue.close()

    async def _switch(self, queue: str, request: Json, *, is_paused: bool) -> None:
        """Pause or resume a queue; wait until its durable's leader has done so.

        With replicas, the server answers before.

        Raises:
            LogUnavailable: the leader does not say that it has done so.
        """
        verb = f"CONSUMER.PAUSE.{self._stream}.{subjects.executor_durable(queue)}"
        await self._connection.manage(verb, json.dumps(request).encode())
        for _ in range(_SWITCH_CHECKS):
            status = await self.standing(queue)
            if status is None or status.is_paused is is_paused:
                return
            await asyncio.sleep(_SWITCH_CHECK_INTERVAL_S)
        raise LogUnavailable(f"queue {queue}: its durable's leader has not taken the change over yet; try again")

    @property
    def _stream(self) -> str:
        return self._names.stream(Stream.LOG)


class SharedQueue:
    """A queue that many callers read at the same time, each with its own reader."""

    def __init__(self, reader: Callable[[], NatsTaskQueue]) -> None:
        """Create readers by `reader`."""
        self._reader = reader
        self._idle: list[NatsTaskQueue] = []
        self._busy: set[NatsTaskQueue] = set()

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Return up to `limit` tasks; wait up to `wait` seconds for the first.

        Raises:
            LogUnavailable: there is no connection, or the queue does not exist.
        """
        reader = self._lend()
        try:
            return await reader.take(limit, wait=wait)
        finally:
            self._busy.discard(reader)
            self._idle.append(reader)

    async def close(self) -> None:
        """Stop, and hand back unread tasks."""
        for reader in (*self._idle, *self._busy):
            await reader.close()

    def _lend(self) -> NatsTaskQueue:
        with_some = (number for number, reader in enumerate(self._idle) if reader.has_some)
        reader = self._idle.pop(next(with_some, -1)) if self._idle else self._reader()
        self._busy.add(reader)
        return reader
