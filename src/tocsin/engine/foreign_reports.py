"""Reports of foreign messages and unreadable events, for operators.

An entry of the bucket `foreign` is written once for each message and process, and removed when the message is voided. A process that starts later may write it
again, so readers leave out what is voided (`not_voided`). No decision rests on an entry.
"""

import asyncio
from typing import Final

from .. import subjects, telemetry
from ..domain.events import Voided
from ..domain.foreign_report import ForeignReport
from ..ports import Clock, EventLog, Projections
from ..subjects import Bucket, DecodeError
from ..telemetry.foreign import ForeignMessages

INTERVAL_S: Final = 2.0
MAX_READ_AGAIN: Final = 100
"""Unreadable events that are read again before they are shown; those beyond are shown as they were met."""
MAX_SHOWN: Final = 1_000
"""Entries that a process writes; the audit finds all messages."""

_log = telemetry.get_logger("tocsin.foreign")


class ForeignReports:
    """Writes what one process met."""

    def __init__(self, projections: Projections, clock: Clock, foreign: ForeignMessages) -> None:
        self._projections = projections
        self._clock = clock
        self._foreign = foreign
        self._waiting: list[ForeignReport] = []
        self._shown = 0

    async def run(self) -> None:
        """Write reports until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self.run_once()

    async def run_once(self) -> None:
        """Write what was met since the last call; what cannot be written is tried again."""
        self._waiting = [*self._waiting, *self._foreign.take()][: MAX_SHOWN - self._shown]
        while self._waiting:
            try:
                await self._show(self._waiting[0])
            except Exception as error:  # noqa: BLE001 - a report that fails must not stop the stages
                _log.info("foreign message not shown yet", action="foreign-not-shown", error=str(error))
                return
            self._waiting.pop(0)

    async def _show(self, report: ForeignReport) -> None:
        key = subjects.foreign_key(report.stream, report.sequence)
        await self._projections.put(Bucket.FOREIGN, key, report.model_dump_json().encode())
        self._shown += 1


async def not_voided(log: EventLog, projections: Projections) -> tuple[ForeignReport, ...]:
    """Return the foreign and unreadable messages that processes met, without voided messages.

    Raises:
        LogUnavailable: the log did not answer.
    """
    entries = await projections.entries(Bucket.FOREIGN)
    if not entries:
        return ()
    stored = await log.load(subjects.filter_for("repair.voided"))
    voided = {(one.message.stream, one.message.sequence) for one in stored if isinstance(one.message, Voided)}
    reports = (ForeignReport.model_validate_json(value) for value in entries.values())
    listed = [report for report in reports if (report.stream, report.sequence) not in voided]
    doubtful = [report for report in listed if report.is_unreadable][:MAX_READ_AGAIN]
    are_readable = await asyncio.gather(*(_is_readable(log, report) for report in doubtful))
    readable = {report for report, is_readable in zip(doubtful, are_readable, strict=True) if is_readable}
    return tuple(
        sorted(
            (report for report in listed if report not in readable), key=lambda report: (report.stream, report.sequence)
        )
    )


async def _is_readable(log: EventLog, report: ForeignReport) -> bool:
    """Return whether this version can read an event, or the stream lost it.

    A process of an older version may have met it.
    """
    if report.does_decode:
        return False
    try:
        await log.get(report.subject, report.sequence)
    except DecodeError:
        return False
    return True
