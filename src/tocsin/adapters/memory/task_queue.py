"""The task queue of workers in memory."""

from collections.abc import Sequence

from ... import subjects
from ...ports import Delivery, DurableSpec
from ...subjects import Stream
from .event_log import InMemoryEventLog


class InMemoryTaskQueue:
    """Implement `ports.TaskQueue`: the durable that the workers of a queue share."""

    def __init__(self, log: InMemoryEventLog, queue: str = subjects.DEFAULT_QUEUE, *, ack_wait: float = 30.0) -> None:
        """Share the tasks with all other instances of the same log and queue.

        `ack_wait` is in seconds.
        """
        self._durable = log.durable(
            DurableSpec(subjects.executor_durable(queue), Stream.LOG, (subjects.tasks(queue),), ack_wait)
        )

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Return up to `limit` tasks.

        Wait up to `wait` seconds of the clock for the first.
        """
        return await self._durable.take(limit, wait=wait)
