"""Takes tasks from one queue, as many as there are free slots, and starts each."""

from collections.abc import Sequence
from typing import Final

from ..ports import Clock, Delivery, TaskQueue
from . import backoff
from .logger import log
from .task_pool import TaskPool

WAIT: Final = 1.0
"""Seconds that one look into an empty queue takes; a worker that is asked to stop waits for at most this long."""


class Intake:
    """The loop of one queue. It never takes more than could start now, unless another queue's loop was faster."""

    def __init__(self, name: str, queue: TaskQueue, crew: TaskPool, clock: Clock) -> None:
        """Take from `queue` for `crew`."""
        self._name = name
        self._queue = queue
        self._crew = crew
        self._clock = clock
        self._failures = 0

    async def run(self) -> None:
        """Take and start, until the crew takes no more."""
        while limit := await self._crew.slots.free():
            deliveries = await self._take(limit)
            await self._crew.start(deliveries)

    async def _take(self, limit: int) -> Sequence[Delivery]:
        try:
            deliveries = await self._queue.take(limit, wait=WAIT)
        except Exception as error:  # noqa: BLE001 - whatever befalls the connection, the worker outlives it
            self._failures += 1
            log.warning("nothing can be taken", action="take-failed", queue=self._name, error=repr(error))
            await self._clock.sleep(backoff.delay(self._failures))
            return ()
        self._failures = 0
        return deliveries
