"""The deadline of an attempt, on behalf of an executor that cannot keep it any more.

A heartbeat keeps a task from being given to another executor; it does not lengthen its time limit. A living executor ends
what takes too long by itself, and reports that; so whoever is still silent a grace period later is gone.
"""

from datetime import datetime

import structlog

from ... import subjects
from ...domain import ids
from ...domain.events import Recorded, Report
from ...domain.execution import Execution
from ...domain.recovery import Overdue, Policy
from ...engine.report_authentication import is_believed
from ...ports import EventLog
from .loss_detection import Evidence

_log = structlog.get_logger("tocsin.recoverer")


class Deadlines:
    """Reports, as an input like any other, what nobody reports."""

    def __init__(self, log: EventLog, key: bytes, policy: Policy) -> None:
        self._log = log
        self._key = key
        self._policy = policy

    async def end(self, overdue: Overdue, state: Execution, now: datetime, evidence: Evidence) -> None:
        """Say that an attempt has failed, unless its executor said how it ended and only that was lost."""
        asked = state.request
        if not await evidence.was_handed_over(overdue):
            return
        told = await self._told(overdue, state)
        if told is not None:
            await self._tell_again(told, now, evidence)
            return
        report = Report(
            job=asked.job,
            execution_id=asked.execution_id,
            outcome="failed",
            step=overdue.step,
            attempt=overdue.attempt,
            delivery=overdue.delivery,
            error=overdue.error,
            token=ids.report_token(self._key, asked.execution_id, overdue.step, overdue.attempt),
            worker=subjects.RECOVERER,
        )
        subject = subjects.subject_of(report)
        await self._log.publish(subject, report, message_id=subject)
        named = {"job": asked.job, "execution_id": asked.execution_id, "step": overdue.step, "attempt": overdue.attempt}
        _log.warning("an attempt is past its deadline", action="attempt-timed-out", **named)

    async def _told(self, overdue: Overdue, state: Execution) -> Recorded[Report] | None:
        """The newest report that decides what becomes of the attempt (`execution.succeed` and `execution.fail`)."""
        asked = state.request
        about = subjects.reports_on(asked.job, asked.execution_id, overdue.step, overdue.attempt)
        for told in reversed(await self._log.load(about)):
            report = told.message
            if not isinstance(report, Report) or not is_believed(report, self._key):
                continue
            if report.outcome == "completed" or report.delivery in {None, overdue.delivery}:
                return Recorded(report, told.subject, told.sequence, told.time, told.message_id)
        return None

    async def _tell_again(self, told: Recorded[Report], now: datetime, evidence: Evidence) -> None:
        """A report that its stage is done with, and that changed nothing, is put before it once more."""
        is_old = now - told.time >= self._policy.threshold
        if is_old and await evidence.is_dealt_with(told.message, told.sequence):
            await self._log.publish(told.subject, told.message, message_id=f"{told.subject}:{told.sequence}")
