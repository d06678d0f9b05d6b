"""The executors' side of the log in memory."""

from collections.abc import Sequence

from ... import subjects
from ...ports import Delivery, DurableSpec
from ...subjects import Stream
from .event_log import InMemoryEventLog


class InMemoryTaskQueue:
    """Implements `ports.TaskQueue`: the durable that the executors of one queue share."""

    def __init__(self, log: InMemoryEventLog, queue: str = subjects.DEFAULT_QUEUE, *, ack_wait: float = 30.0) -> None:
        """Two over the same log and queue share the tasks. `ack_wait`: seconds."""
        self._durable = log.durable(
            DurableSpec(subjects.executor_durable(queue), Stream.LOG, (subjects.tasks(queue),), ack_wait)
        )

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Up to `limit` tasks, whatever is there; waits up to `wait` seconds of the clock for the first."""
        return await self._durable.take(limit, wait=wait)
