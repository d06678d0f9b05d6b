"""The notices of the matcher that stop handlers whose executions were cancelled or failed."""

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from .. import telemetry
from ..domain.agent import EndNotice
from ..ports import Clock
from ..subjects import entity_of
from .held_tasks import HeldTask, HeldTasks
from .outcome import StopReason

REMEMBERED: Final = 1_000
"""The number of ended executions that are remembered, for tasks that arrive after the end."""

_log = telemetry.get_logger("tocsin.worker")


class Cancellations:
    """Stops the tasks of executions that are over.

    A user or a newer run (`cancel_previous`) cancelled the execution, or it failed while some of its steps still ran. A
    handler that watches `context.cancelled` gets `grace` seconds to end. A notice may be late or arrive twice: it only
    saves work, because claims and stages decide what counts.
    """

    def __init__(self, held_tasks: HeldTasks, clock: Clock, *, grace: float) -> None:
        """Stop the tasks in `held_tasks`; `grace` is in seconds."""
        self._held_tasks = held_tasks
        self._clock = clock
        self._grace = grace
        self._waiting: dict[HeldTask, asyncio.Task[None]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def receive(self, message: bytes) -> None:
        """Take a notice."""
        try:
            notice = msgspec.json.decode(message, type=EndNotice)
        except ValueError as error:
            _log.warning("notice unreadable", action="end-notice-unreadable", error=str(error))
            return
        for execution in notice.executions:
            self._ended[execution] = None
            self._ended.move_to_end(execution)
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        for task in self._held_tasks.of(frozenset(notice.executions)):
            if task not in self._waiting:
                self._cancel(task)

    def is_over(self, subject: str) -> bool:
        """Return whether the execution of a task was cancelled, or failed, a short time ago."""
        return bool(self._ended) and entity_of(subject) in self._ended

    def close(self) -> None:
        """Wait no longer for handlers that have time to end."""
        for waiting in self._waiting.values():
            waiting.cancel()

    def _cancel(self, held: HeldTask) -> None:
        if held.cancel_execution():
            waiting = self._waiting[held] = asyncio.create_task(self._stop_after_grace(held))
            waiting.add_done_callback(lambda _: self._waiting.pop(held, None))

    async def _stop_after_grace(self, held: HeldTask) -> None:
        await self._clock.sleep(self._grace)
        held.stop(StopReason.CANCELLED)
