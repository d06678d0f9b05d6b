"""The tasks that a worker holds, and the heartbeat that renews their visibility leases."""

import asyncio
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from .. import telemetry
from ..domain.agent import MAX_HELD
from ..ports import Clock, Delivery
from ..subjects import entity_of
from .outcome import StopReason
from .shutdown import Flag

BEATS_PER_ACK_WAIT: Final = 3
"""Two heartbeats in a row may be lost."""

_log = telemetry.get_logger("tocsin.worker")


class HeldTask:
    """One delivery from its arrival to its settlement. Other parts stop its handler through it."""

    __slots__ = ("_runner", "abandoned", "cancelled", "delivery", "entity", "stopped")

    def __init__(self, delivery: Delivery) -> None:
        """Hold a delivery whose handler does not run yet."""
        self.delivery = delivery
        self.entity = entity_of(delivery.subject)
        """The key of its execution."""
        self.cancelled = Flag()
        self.stopped: StopReason | None = None
        self.abandoned: Future[object] | None = None
        """A sync handler that still runs in its thread although its result is no longer needed."""
        self._runner: asyncio.Task[object] | None = None

    def begin(self) -> None:
        """Mark that the handler runs in the current asyncio task, so that `stop` interrupts it."""
        self._runner = asyncio.current_task()

    def end(self) -> None:
        """Mark that the handler ended, so that `stop` does not interrupt the report."""
        self._runner = None

    def cancel_execution(self) -> bool:
        """Stop the handler, or return True if it watches `cancelled` and may end by itself."""
        if self._runner is None or not self.cancelled.is_watched:
            self.stop(StopReason.CANCELLED)
            return False
        self.stopped = self.stopped or StopReason.CANCELLED
        self.cancelled.set()
        return True

    def stop(self, reason: StopReason) -> None:
        """Interrupt the handler, or keep it from starting. The first reason counts."""
        self.stopped = self.stopped or reason
        self.cancelled.set()
        if self._runner is not None:
            self._runner.cancel()


class HeldTasks:
    """All tasks that a worker holds, in the order of their arrival."""

    def __init__(self) -> None:
        """Hold no task."""
        self._all: dict[HeldTask, None] = {}  # a dictionary, because a set has no order
        self._handed_back: deque[int] = deque(maxlen=MAX_HELD)
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, held: HeldTask) -> None:
        """Add a task."""
        self._all[held] = None
        self._empty.clear()

    def remove(self, held: HeldTask) -> None:
        """Remove a settled task."""
        self._all.pop(held, None)
        if not self._all:
            self._empty.set()

    def hand_back(self, claim: int) -> None:
        """Note that the task of a claim in this worker's name does not run here."""
        self._handed_back.append(claim)

    @property
    def handed_back(self) -> tuple[int, ...]:
        """The claims that were handed back, the newest last."""
        return tuple(self._handed_back)

    async def settled(self) -> None:
        """Wait until no task is held."""
        await self._empty.wait()

    def of(self, entity: str) -> list[HeldTask]:
        """Return the tasks of one execution."""
        return [task for task in self._all if task.entity == entity]

    def __iter__(self) -> Iterator[HeldTask]:
        """Iterate over a copy, so that tasks may be removed meanwhile."""
        return iter(tuple(self._all))

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._all)


class Heartbeat:
    """Renewal of the visibility leases of all held tasks.

    Without it, a queue would redeliver a long task to another worker.

    An async handler that blocks the loop also stops the heartbeat; such a handler should be a sync one.
    """

    def __init__(self, held_tasks: HeldTasks, clock: Clock, *, ack_wait: float) -> None:
        """Renew the leases several times in each `ack_wait` seconds."""
        self._held_tasks = held_tasks
        self._clock = clock
        self._interval = ack_wait / BEATS_PER_ACK_WAIT

    async def run(self) -> None:
        """Renew the leases at each interval until cancelled."""
        while True:
            await self._clock.sleep(self._interval)
            await self.run_once()

    async def run_once(self) -> None:
        """Renew the leases of all held tasks."""
        renewals = (task.delivery.in_progress() for task in self._held_tasks)
        results = await asyncio.gather(*renewals, return_exceptions=True)
        if errors := [result for result in results if isinstance(result, Exception)]:
            _log.warning("heartbeat lost", action="heartbeat-lost", count=len(errors), error=str(errors[0]))
