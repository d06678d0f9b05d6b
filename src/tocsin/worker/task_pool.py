"""The tasks that run side by side in one worker."""

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress

from ..ports import Delivery
from .ack import HandBack, settle
from .executor import Executor
from .held_tasks import HeldTask, HeldTasks
from .logger import log
from .outcome import StopReason
from .slots import Slots


class TaskPool:
    """Starts deliveries in free slots, and ends them all."""

    def __init__(self, executor: Executor, holdings: HeldTasks, slots: Slots) -> None:
        """Nothing runs yet."""
        self.slots = slots
        self._executor = executor
        self._holdings = holdings
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, deliveries: Sequence[Delivery]) -> None:
        """Start each as soon as there is a slot; hand back what no slot is given out for any more.

        All of them are held from now on: the heartbeat keeps those that wait.
        """
        in_hand = {held.delivery.subject for held in self._holdings}
        holdings = [HeldTask(delivery) for delivery in deliveries if not _is_in_hand(delivery, in_hand)]
        for holding in holdings:
            self._holdings.add(holding)
        for holding in holdings:
            if await self.slots.occupy():
                task = asyncio.create_task(self._see_through(holding))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                await settle(holding.delivery, HandBack())
                self._holdings.remove(holding)

    def stop(self, reason: StopReason) -> None:
        """Stop every handler; what was held for it is settled as the reason says."""
        for holding in self._holdings:
            holding.stop(reason)

    def abandon(self) -> None:
        """Cancel whatever still runs, reports included: those tasks are delivered again."""
        if self._tasks:
            log.warning("tasks were left", action="tasks-left", count=len(self._tasks))
        for task in self._tasks:
            task.cancel()

    async def _see_through(self, holding: HeldTask) -> None:
        try:
            await self._executor.run(holding)
        finally:
            self._holdings.remove(holding)
            self._free_slot_of(holding)

    def _free_slot_of(self, holding: HeldTask) -> None:
        """At once, or when the abandoned thread that still uses it ends."""
        if holding.abandoned is None:
            self.slots.release()
            return
        loop = asyncio.get_running_loop()

        def release(_: Future[object]) -> None:
            with suppress(RuntimeError):  # the loop is closed: there is nobody left to use it
                loop.call_soon_threadsafe(self.slots.release)

        holding.abandoned.add_done_callback(release)


def _is_in_hand(delivery: Delivery, in_hand: Collection[str]) -> bool:
    """Whether this worker is at that very task: the queue lost count of it, or took the worker for dead."""
    if delivery.subject not in in_hand:
        return False
    log.warning("already in hand", action="task-in-hand", subject=delivery.subject, delivery=delivery.delivered)
    return True
