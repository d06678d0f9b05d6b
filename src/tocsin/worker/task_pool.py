"""The slots of a worker, and the tasks that run in them."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress

from .. import telemetry
from .executor import Executor
from .held_tasks import AssignedTask, HeldTask, HeldTasks
from .outcome import StopReason
from .shutdown import Flag

_log = telemetry.get_logger("tocsin.worker")


class Slots:
    """A number of slots, each free or in use.

    Once `closed` is set, no slot is given out; while they are paused, neither.
    """

    def __init__(self, limit: int, closed: Flag) -> None:
        self._free = limit
        self._is_paused = False
        self._closed = closed
        self._changed = asyncio.Event()

    async def occupy(self) -> bool:
        """Wait for a free slot and use it.

        False: the slots are closed or paused.
        """
        while not self._is_paused and not self._free and not self._closed.is_set():
            self._changed.clear()
            await self._changed.wait()
        return self.occupy_now()

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
        self.slots = slots
        self._executor = executor
        self._held_tasks = held_tasks
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, assigned: AssignedTask) -> None:
        """Start a task at once, or in the next free slot.

        The caller knows that this worker does not hold it.
        """
        held = HeldTask(assigned)
        self._held_tasks.add(held)
        task = asyncio.create_task(self._run(held) if self.slots.occupy_now() else self._start(held))
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    async def _start(self, held: HeldTask) -> None:
        if await self.slots.occupy():
            await self._run(held)
        else:
            held.assigned.hand_back()
            self._held_tasks.remove(held)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or isinstance(error := task.exception(), KeyboardInterrupt | None):
            return  # Ctrl-C during a handler reaches the program by itself
        task.get_loop().call_exception_handler({"message": "task failed", "exception": error, "task": task})

    def stop(self, reason: StopReason) -> None:
        """Stop all handlers; the reason decides whether their tasks are handed back."""
        for task in self._held_tasks:
            task.stop(reason)

    def abandon(self) -> None:
        """Cancel all tasks that still run, even while they report. The matcher assigns them again.

        An async handler that catches this cancellation too runs on; only the end of the process ends it. Its result is discarded.
        """
        for held in self._held_tasks:
            held.is_left = True
            what = "handler ignores its cancellation and runs on" if held.is_running else "report not stored in time"
            _log.warning(f"{what}; the task runs again unless its execution ends", action="task-left", **held.names)
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
