"""The executors' side of the log: tasks from the durable of a queue."""

from collections.abc import Sequence

from .... import subjects
from ....subjects import Stream
from ..client.connection import Connection
from ..client.names import Names
from .delivery import NatsDelivery
from .durable import NatsDurable

__all__ = ["NatsDelivery", "NatsTaskQueue"]


class NatsTaskQueue:
    """Implements `ports.TaskQueue` for one queue."""

    def __init__(self, connection: Connection, names: Names, queue: str = subjects.DEFAULT_QUEUE) -> None:
        """The queue's durable exists: `provision` made it."""
        self._durable = NatsDurable(connection, names, Stream.LOG, subjects.executor_durable(queue))

    @property
    def has_some(self) -> bool:
        """Tasks came when the last caller had given up: the next one has them at once."""
        return self._durable.has_some

    async def take(self, limit: int, *, wait: float) -> Sequence[NatsDelivery]:
        """Up to `limit` tasks, whatever is there; waits up to `wait` seconds for the first.

        Raises:
            LogUnavailable: nothing can be asked for now, or there is no such queue.
        """
        return await self._durable.take(limit, wait=wait)

    async def close(self) -> None:
        """Stop, and hand back what nobody took."""
        await self._durable.close()
