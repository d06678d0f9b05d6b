"""The task queues of workers, in memory."""

from collections.abc import Sequence

from ... import subjects
from ...ports import Delivery, DurableSpec, QueueStatus
from ...subjects import Stream
from .event_log import InMemoryEventLog


class InMemoryTaskQueue:
    """Implement `ports.TaskQueue`: the durable that the workers of a queue share."""

    def __init__(self, log: InMemoryEventLog, queue: str = subjects.DEFAULT_QUEUE, *, ack_wait: float = 30.0) -> None:
        """Share the tasks with all other instances of the same log and queue.

        `ack_wait` is in seconds.
        """
        self._durable = log.durable(
            DurableSpec(subjects.executor_durable(queue), Stream.LOG, subjects.tasks(queue), ack_wait)
        )

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Return up to `limit` tasks.

        Wait up to `wait` seconds of the clock for the first.
        """
        return await self._durable.take(limit, wait=wait)


class InMemoryTaskQueues:
    """Implement `ports.TaskQueues`."""

    def __init__(self, log: InMemoryEventLog, *, ack_wait: float = 30.0) -> None:
        """Use a log; `ack_wait` is in seconds."""
        self._log = log
        self._ack_wait = ack_wait
        self._open: dict[str, _Pausable] = {}

    async def open(self, queue: str) -> "_Pausable":
        """Return a queue, and create it at the first request."""
        if queue not in self._open:
            self._open[queue] = _Pausable(InMemoryTaskQueue(self._log, queue, ack_wait=self._ack_wait))
        return self._open[queue]

    async def pause(self, queue: str) -> None:
        """Stop deliveries."""
        (await self.open(queue)).is_paused = True

    async def resume(self, queue: str) -> None:
        """Resume deliveries."""
        (await self.open(queue)).is_paused = False

    async def standing(self, queue: str) -> QueueStatus | None:
        """Return the state of a queue; None if it was never opened."""
        if queue not in self._open:
            return None
        progress = await self._log.progress(Stream.LOG, subjects.executor_durable(queue))
        floor = progress.floor if progress else 0
        waiting = sum([len(await self._log.read(tasks, after=floor)) for tasks in subjects.tasks(queue)])
        return QueueStatus(queue, self._open[queue].is_paused, waiting, 0)

    async def names(self) -> Sequence[str]:
        """Return the names of the opened queues."""
        return sorted(self._open)


class _Pausable:
    """A queue, which is empty while it is paused."""

    def __init__(self, queue: InMemoryTaskQueue) -> None:
        self._queue = queue
        self.is_paused = False

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        return () if self.is_paused else await self._queue.take(limit, wait=wait)
