"""Hears when an execution ends over the heads of its executors, and stops its handlers.

A handler that has looked at `context.cancelled` knows how to end by itself, and is given `grace` to do so; any other is
interrupted at once.

It was cancelled, by a user or by a newer run (`cancel_previous`); or it failed as a whole while steps of it still ran, since
it took longer than its job allows, or was given up for lost.
"""

import asyncio
from typing import Final

from .. import subjects
from ..ports import Clock, EventLog
from . import backoff
from .held_tasks import HeldTask, HeldTasks
from .logger import log as worker_log
from .outcome import StopReason

CALLED_OFF: Final = (subjects.filter_for("execution.cancelled"), subjects.filter_for("execution.failed"))


class Cancellations:
    """One reader for all tasks of a worker. It may be late: claims and the stages decide, this only saves work."""

    def __init__(self, log: EventLog, holdings: HeldTasks, clock: Clock, *, grace: float) -> None:
        """Read in `log`, stop in `holdings`; `grace` in seconds."""
        self._log = log
        self._holdings = holdings
        self._clock = clock
        self._grace = grace
        self._waiting: set[asyncio.Task[None]] = set()
        self._upto: int | None = None
        self._failures = 0

    async def run(self) -> None:
        """Follow until cancelled, through whatever befalls the log."""
        try:
            while True:
                try:
                    await self._follow()
                except Exception as error:  # noqa: BLE001 - must outlive any trouble, or nothing is stopped again
                    worker_log.warning("cancellations are not heard", action="cancellations-unheard", error=str(error))
                self._failures += 1
                await self._clock.sleep(backoff.delay(self._failures))
        finally:
            for waiting in self._waiting:
                waiting.cancel()

    async def _follow(self) -> None:
        if self._upto is None:
            # What was called off before needs no stopping: its claim is refused.
            self._upto = max([await self._newest(filter_) for filter_ in CALLED_OFF])
        async for batch in self._log.watch(subjects.Stream.LOG, *CALLED_OFF, after=self._upto):
            self._failures = 0
            for heading in batch.headings:
                for holding in self._holdings.of(subjects.entity_of(heading.subject)):
                    self._call_off(holding)
            self._upto = max(self._upto, batch.upto)

    def _call_off(self, holding: HeldTask) -> None:
        if holding.call_off():
            waiting = asyncio.create_task(self._stop_in_the_end(holding))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)

    async def _stop_in_the_end(self, holding: HeldTask) -> None:
        await self._clock.sleep(self._grace)
        holding.stop(StopReason.CANCELLED)

    async def _newest(self, filter_: str) -> int:
        newest = await self._log.last(filter_)
        return newest.sequence if newest is not None else 0
