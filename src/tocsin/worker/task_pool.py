"""The slots of a worker, and the tasks that run in them."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress

from .. import subjects, telemetry
from .executor import Executor
from .held_tasks import AssignedTask, HeldTask, HeldTasks

_log = telemetry.get_logger("tocsin.worker")


class Slots:
    """A number of slots, each free or in use.

    While they are paused, no slot is given out.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._is_paused = False
        self._changed = asyncio.Event()

    async def occupy(self) -> bool:
        """Wait for a free slot and use it. False: the slots are paused."""
        while not self._is_paused and not self._free:
            self._changed.clear()
            await self._changed.wait()
        return self.occupy_now()

    def occupy_now(self) -> bool:
        """Use a free slot, if there is one."""
        if self._is_paused or not self._free:
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


class TaskPool:
    """The running tasks of a worker."""

    def __init__(self, executor: Executor, held_tasks: HeldTasks, slots: Slots) -> None:
        self.slots = slots
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._held_tasks = held_tasks
        self._tasks: dict[HeldTask, asyncio.Task[None]] = {}

    def take(self, assigned: AssignedTask) -> None:
        """Start a task at once, or in the next free slot.

        The caller knows that this worker does not hold it.
        """
        held = HeldTask(assigned)
        self._held_tasks.add(held)
        self._tasks[held] = self._loop.create_task(self._run(held, has_slot=self.slots.occupy_now()))

    def _on_error(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or isinstance(error := task.exception(), KeyboardInterrupt | None):
            return  # Ctrl-C during a handler reaches the program by itself
        task.get_loop().call_exception_handler({"message": "task failed", "exception": error, "task": task})

    def abandon(self) -> None:
        """Cancel all tasks that still run, even while they report. The matcher assigns them again.

        An async handler that catches this cancellation too runs on; only the end of the process ends it. Its result is discarded.
        """
        for held in self._held_tasks:
            held.is_left = True
            what = (
                "handler ignores its cancellation and runs on"
                if held.runner is not None
                else "report not stored in time"
            )
            names = subjects.ids_in(held.assigned.assignment.subject)
            _log.warning(f"{what}; the task runs again unless its execution ends", action="task-left", **names)
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, held: HeldTask, *, has_slot: bool) -> None:
        try:
            if has_slot or (has_slot := await self.slots.occupy()):
                await self._executor.run(held)
            else:
                held.assigned.hand_back()
        except BaseException:
            self._tasks[held].add_done_callback(self._on_error)
            raise
        finally:
            del self._tasks[held]
            self._held_tasks.remove(held)
            if has_slot:
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
