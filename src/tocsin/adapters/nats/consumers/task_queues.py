"""The executors' queues by name, for whoever learns their names only when asked for a task."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from .... import subjects
from ....ports import Delivery, QueueStatus
from ....subjects import Stream
from ..admin.queue_durables import ensure_executors
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from .task_queue import NatsTaskQueue

FOR_EVER: Final = timedelta(days=36_500)


class NatsTaskQueues:
    """Implements `ports.TaskQueues`."""

    def __init__(self, connection: Connection, names: Names, *, ack_wait: float) -> None:
        """`ack_wait`: seconds after which a task is delivered again that nobody acknowledged or kept."""
        self._connection = connection
        self._names = names
        self._ack_wait = ack_wait
        self._open: dict[str, SharedQueue] = {}

    async def open(self, queue: str) -> "SharedQueue":
        """A queue; its durable is made if it is not there.

        Raises:
            ProvisionError: it cannot be made.
            LogUnavailable: no answer.
        """
        if queue not in self._open:
            await ensure_executors(self._connection, self._names, (queue,), ack_wait=self._ack_wait)
            self._open[queue] = SharedQueue(partial(NatsTaskQueue, self._connection, self._names, queue))
        return self._open[queue]

    async def pause(self, queue: str) -> None:
        """Have the server deliver nothing more, by the consumer's own pause: it survives restarts, and any reader heeds it."""
        await self.open(queue)
        until = (datetime.now(UTC) + FOR_EVER).isoformat().replace("+00:00", "Z")
        await self._pause(queue, {"pause_until": until})

    async def resume(self, queue: str) -> None:
        """Have the server deliver again."""
        await self.open(queue)
        await self._pause(queue, {})

    async def standing(self, queue: str) -> QueueStatus | None:
        """By the word of the consumer's leader."""
        verb = f"CONSUMER.INFO.{self._stream}.{subjects.executor_durable(queue)}"
        told = await self._connection.look_up(verb, absent=wire.CONSUMER_NOT_FOUND)
        if told is None:
            return None
        return QueueStatus(queue, bool(told.get("paused")), told["num_pending"], told["num_ack_pending"])

    async def names(self) -> Sequence[str]:
        """In alphabetical order."""
        found: list[str] = []
        while True:
            told = await self._connection.manage(
                f"CONSUMER.NAMES.{self._stream}", json.dumps({"offset": len(found)}).encode()
            )
            names: list[str] = told["consumers"] or []
            found += names
            if not names or len(found) >= told["total"]:
                return sorted(queue for queue in map(subjects.queue_of, found) if queue is not None)

    async def close(self) -> None:
        """Hand back what nobody took."""
        for queue in self._open.values():
            await queue.close()

    async def _pause(self, queue: str, request: Json) -> None:
        verb = f"CONSUMER.PAUSE.{self._stream}.{subjects.executor_durable(queue)}"
        await self._connection.manage(verb, json.dumps(request).encode())

    @property
    def _stream(self) -> str:
        return self._names.stream(Stream.LOG)


class SharedQueue:
    """A queue that any number of callers wait on at the same time, each with a reader of its own."""

    def __init__(self, reader: Callable[[], NatsTaskQueue]) -> None:
        """`reader` makes one more."""
        self._reader = reader
        self._idle: list[NatsTaskQueue] = []
        self._busy: set[NatsTaskQueue] = set()

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Up to `limit` tasks, whatever is there; waits up to `wait` seconds for the first.

        Raises:
            LogUnavailable: nothing can be asked for now, or there is no such queue.
        """
        reader = self._lend()
        try:
            return await reader.take(limit, wait=wait)
        finally:
            self._busy.discard(reader)
            self._idle.append(reader)

    async def close(self) -> None:
        """Stop, and hand back what nobody took."""
        for reader in (*self._idle, *self._busy):
            await reader.close()

    def _lend(self) -> NatsTaskQueue:
        with_some = (number for number, reader in enumerate(self._idle) if reader.has_some)
        reader = self._idle.pop(next(with_some, -1)) if self._idle else self._reader()
        self._busy.add(reader)
        return reader
