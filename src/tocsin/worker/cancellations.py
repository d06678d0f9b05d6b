"""The reader that stops handlers when their executions are cancelled or fail."""

import asyncio
from collections import OrderedDict
from typing import Final

from .. import subjects, telemetry
from ..ports import Clock, EventLog
from .held_tasks import HeldTask, HeldTasks
from .outcome import StopReason, retry_delay

ENDINGS: Final = (subjects.filter_for("execution.cancelled"), subjects.filter_for("execution.failed"))
"""A user or a newer run (`cancel_previous`) cancelled the execution; or it failed while some of its steps still ran."""

REMEMBERED: Final = 1_000
"""The number of ended executions that are remembered, for tasks that arrive after the end."""

_log = telemetry.get_logger("tocsin.worker")


class Cancellations:
    """One reader for all tasks of a worker.

    A handler that watches `context.cancelled` gets `grace` seconds to end. The reader may be late or miss an ending: it
    only saves work, because claims and stages decide what counts.
    """

    def __init__(self, log: EventLog, held_tasks: HeldTasks, clock: Clock, *, grace: float) -> None:
        """Read `log` and stop the tasks in `held_tasks`; `grace` is in seconds."""
        self._log = log
        self._held_tasks = held_tasks
        self._clock = clock
        self._grace = grace
        self._waiting: set[asyncio.Task[None]] = set()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._upto: int | None = None
        self._failures = 0

    async def run(self) -> None:
        """Read until cancelled, and try again after any error of the log."""
        try:
            while True:
                try:
                    await self._follow()
                except Exception as error:  # noqa: BLE001 - if this reader ended, no handler would be stopped again
                    _log.warning("cannot read cancellations", action="cancellations-unheard", error=str(error))
                self._failures += 1
                await self._clock.sleep(retry_delay(self._failures))
        finally:
            for waiting in self._waiting:
                waiting.cancel()

    async def _follow(self) -> None:
        if self._upto is None:
            # Tasks of executions that ended before need no stop: their claims are denied.
            self._upto = max([await self._newest(filter_) for filter_ in ENDINGS])
        async for batch in self._log.watch(subjects.Stream.LOG, *ENDINGS, after=self._upto):
            self._failures = 0
            for heading in batch.headings:
                self._end(subjects.entity_of(heading.subject))
            self._upto = max(self._upto, batch.upto)

    def is_over(self, entity: str) -> bool:
        """Return whether an execution was cancelled, or failed, a short time ago."""
        return entity in self._ended

    def _end(self, entity: str) -> None:
        self._ended[entity] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        for task in self._held_tasks.of(entity):
            self._cancel(task)

    def _cancel(self, held: HeldTask) -> None:
        if held.cancel_execution():
            waiting = asyncio.create_task(self._stop_after_grace(held))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)

    async def _stop_after_grace(self, held: HeldTask) -> None:
        await self._clock.sleep(self._grace)
        held.stop(StopReason.CANCELLED)

    async def _newest(self, filter_: str) -> int:
        newest = await self._log.last(filter_)
        return newest.sequence if newest is not None else 0
