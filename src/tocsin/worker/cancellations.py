"""Hears when an execution is called off, by a user or by a newer run (`cancel_previous`), and stops its handlers."""

from typing import Final

from .. import subjects
from ..ports import Clock, EventLog
from . import backoff
from .holdings import Holdings
from .logger import log as worker_log
from .outcome import StopReason

CANCELLED: Final = subjects.every("execution.cancelled")


class Cancellations:
    """One reader for all tasks of a worker. It may be late: claims and the stages decide, this only saves work."""

    def __init__(self, log: EventLog, holdings: Holdings, clock: Clock) -> None:
        """Read in `log`, stop in `holdings`."""
        self._log = log
        self._holdings = holdings
        self._clock = clock
        self._upto: int | None = None
        self._failures = 0

    async def run(self) -> None:
        """Follow until cancelled, through whatever befalls the log."""
        while True:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - must outlive any trouble, or nothing is stopped again
                worker_log.warning("cancellations are not heard", action="cancellations-unheard", error=str(error))
            self._failures += 1
            await self._clock.sleep(backoff.delay(self._failures))

    async def _follow(self) -> None:
        if self._upto is None:
            # What was called off before needs no stopping: its claim is refused.
            newest = await self._log.last(CANCELLED)
            self._upto = newest.sequence if newest is not None else 0
        async for batch in self._log.follow(subjects.Stream.LOG, CANCELLED, after=self._upto):
            self._failures = 0
            for recorded in batch.messages:
                for holding in self._holdings.of(subjects.entity_of(recorded.subject)):
                    holding.stop(StopReason.CANCELLED)
            self._upto = max(self._upto, batch.upto)
