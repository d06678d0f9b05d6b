"""The slots of a worker.

Tasks are taken from queues while slots are free, and each runs in its slot.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from .. import telemetry
from ..ports import Clock, Delivery, TaskQueue
from .executor import Executor
from .held_tasks import HeldTask, HeldTasks
from .outcome import HandBack, StopReason, retry_delay, settle
from .shutdown import Flag

TAKE_WAIT_S: Final = 1.0
"""How long a request to an empty queue waits. A worker that stops waits for such a request at most this long."""

_log = telemetry.get_logger("tocsin.worker")


class Slots:
    """A number of slots, each free or in use.

    Once `closed` is set, no slot is given out; while they are paused, neither.
    """

    def __init__(self, limit: int, closed: Flag) -> None:
        """Start with all slots free."""
        self._free = limit
        self._is_paused = False
        self._closed = closed
        self._changed = asyncio.Event()

    async def free(self) -> int:
        """Wait for a free slot and return the number of free slots.

        0 if the slots are closed.
        """
        while (self._is_paused or not self._free) and not self._closed.is_set():
            self._changed.clear()
            await self._changed.wait()
        return 0 if self._closed.is_set() else self._free

    async def occupy(self) -> bool:
        """Wait for a free slot and use it.

        False: the slots are closed or paused.
        """
        if self._is_paused or not await self.free():
            return False
        self._free -= 1
        return True

    def occupy_now(self) -> bool:
        """Use a free slot, if there is one."""
        if self._is_paused or not self._free or self._closed.is_set():
            return False
        self._free -= 1
        return True

    def release(self) -> None:
        """Free a slot."""
        self._free += 1
        self._changed.set()

    def pause(self, *, is_paused: bool) -> None:
        """Give out no slots, or give them out again. Slots in use are not affected."""
        self._is_paused = is_paused
        self._changed.set()

    def wake(self) -> None:
        """Let all waiting callers notice that the slots are closed."""
        self._changed.set()


class TaskPool:
    """The running tasks of a worker."""

    def __init__(self, executor: Executor, held_tasks: HeldTasks, slots: Slots) -> None:
        """Start without tasks."""
        self.slots = slots
        self._executor = executor
        self._held_tasks = held_tasks
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, deliveries: Sequence[Delivery]) -> None:
        """Start each delivery in the next free slot.

        Hand the rest back if the slots are closed. All deliveries are held from the beginning, so that the heartbeat renews
        those that wait for a slot.
        """
        subjects = {task.delivery.subject for task in self._held_tasks}
        new = [HeldTask(delivery) for delivery in deliveries if not _is_held(delivery, subjects)]
        for task in new:
            self._held_tasks.add(task)
        for task in new:
            await self._start(task)

    def take(self, delivery: Delivery) -> None:
        """Start a delivery at once, or in the next free slot.

        The caller knows that this worker does not hold it.
        """
        task = HeldTask(delivery)
        self._held_tasks.add(task)
        self._spawn(self._run(task) if self.slots.occupy_now() else self._start(task))

    async def _start(self, held: HeldTask) -> None:
        if await self.slots.occupy():
            self._spawn(self._run(held))
        else:
            await settle(held.delivery, HandBack())
            self._held_tasks.remove(held)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self, reason: StopReason) -> None:
        """Stop all handlers; the reason decides how their deliveries are settled."""
        for task in self._held_tasks:
            task.stop(reason)

    def abandon(self) -> None:
        """Cancel all tasks that still run, even while they report. Their queues redeliver them."""
        if self._tasks:
            _log.warning("tasks abandoned", action="tasks-left", count=len(self._tasks))
        for task in self._tasks:
            task.cancel()

    async def _run(self, held: HeldTask) -> None:
        try:
            await self._executor.run(held)
        finally:
            self._held_tasks.remove(held)
            self._release_slot(held)

    def _release_slot(self, held: HeldTask) -> None:
        """Release the slot at once, or when the abandoned thread that still uses it ends."""
        if held.abandoned is None:
            self.slots.release()
            return
        loop = asyncio.get_running_loop()

        def release(_: Future[object]) -> None:
            with suppress(RuntimeError):  # the loop is closed, so the slot is not needed
                loop.call_soon_threadsafe(self.slots.release)

        held.abandoned.add_done_callback(release)


class Intake:
    """The loop that takes tasks from one queue.

    It takes no more than there are free slots at that moment.
    """

    def __init__(self, name: str, queue: TaskQueue, pool: TaskPool, clock: Clock) -> None:
        """Take tasks from `queue` and start them in `pool`."""
        self._name = name
        self._queue = queue
        self._pool = pool
        self._clock = clock
        self._failures = 0

    async def run(self) -> None:
        """Take and start tasks until the slots are closed."""
        while limit := await self._pool.slots.free():
            deliveries = await self._take(limit)
            await self._pool.start(deliveries)

    async def _take(self, limit: int) -> Sequence[Delivery]:
        try:
            deliveries = await self._queue.take(limit, wait=TAKE_WAIT_S)
        except Exception as error:  # noqa: BLE001 - the worker continues after any trouble with its connection
            self._failures += 1
            _log.warning("cannot take tasks", action="take-failed", queue=self._name, error=repr(error))
            await self._clock.sleep(retry_delay(self._failures))
            return ()
        self._failures = 0
        return deliveries


def _is_held(delivery: Delivery, subjects: Collection[str]) -> bool:
    """Return whether this worker already runs the task.

    The queue lost its count, or assumed that the worker died.
    """
    if delivery.subject not in subjects:
        return False
    _log.warning("task already held", action="task-in-hand", subject=delivery.subject, delivery=delivery.delivered)
    return True
