"""Deadlines of attempts: the report of failure for an executor that fell silent."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any

from ... import subjects
from ...domain import execution, ids
from ...domain.events import Message, Recorded, Report
from ...domain.execution import Execution
from ...domain.recovery import Overdue, Policy
from ...engine.report_authentication import authentic_report, reports_on
from ...ports import EventLog, Publish, Write
from ...subjects import DecodeError
from .open_executions import Evidence


@dataclass(frozen=True, slots=True)
class Change:
    """Something to store, and the log line that follows."""

    write: Write
    notice: Mapping[str, Any] = field(default_factory=dict)


class Deadlines:
    """Decides on the failure of attempts whose executors fell silent.

    A heartbeat keeps a task from other executors; it does not extend the task's time limit. A living executor ends an
    attempt that takes too long, and reports that; an executor that is silent a grace period later is gone. The report is
    an input like any other.
    """

    def __init__(self, log: EventLog, key: bytes, policy: Policy) -> None:
        self._log = log
        self._key = key
        self._policy = policy

    async def end(
        self, overdue: Overdue, facts: Sequence[Recorded[Message]], state: Execution, now: datetime, evidence: Evidence
    ) -> Change | None:
        """Return the report that ends an attempt; `facts` are the events of the execution.

        None: the attempt's time does not count yet, or its executor's own report is stored.
        """
        request = state.request
        claim = None if overdue.delivery is None else state.steps[overdue.step].claim
        if not await evidence.was_handed_over(overdue):
            return None
        stored_report = await self._stored_report(overdue, facts, state)
        if stored_report is not None:
            return await self._publish_again(stored_report, now, evidence)
        report = Report(
            job=request.job,
            execution_id=request.execution_id,
            outcome="failed",
            step=overdue.step,
            attempt=overdue.attempt,
            delivery=overdue.delivery,
            claim=claim,
            error=overdue.error,
            token=ids.report_token(self._key, request.execution_id, overdue.step, overdue.attempt),
            proof=ids.claim_proof(self._key, request.execution_id, overdue.step, overdue.attempt, claim),
            worker=subjects.RECOVERER,
        )
        subject = subjects.subject_of(report)
        notice = {
            "event": "attempt timed out",
            "action": "attempt-timed-out",
            "job": request.job,
            "execution_id": request.execution_id,
            "step": overdue.step,
            "attempt": overdue.attempt,
        }
        return Change(Publish(subject, report, message_id=ids.report_id(report.proof or "", subject)), notice)

    async def _stored_report(
        self, overdue: Overdue, facts: Sequence[Recorded[Message]], state: Execution
    ) -> Recorded[Report] | None:
        """Return the newest report that decides on the attempt (`execution.succeed` and `execution.fail`)."""
        current = state.steps[overdue.step].claim
        claims = {None, *execution.claims_on(facts, overdue.step, overdue.attempt), current or None}
        filters = reports_on(state.request, overdue.step, overdue.attempt, self._key, claims=claims)
        reads = await asyncio.gather(*map(self._readable, filters))
        for recorded in sorted(chain.from_iterable(reads), key=attrgetter("sequence"), reverse=True):
            report = authentic_report(recorded, self._key)
            if report is None:
                continue
            is_current = report.claim in {None, current} and report.delivery in {None, overdue.delivery}
            if report.outcome == "completed" or is_current:
                return Recorded(report, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        return None

    async def _readable(self, subject: str) -> Sequence[Recorded[Message]]:
        """Return the reports on a claim; none, if its worker stored something else."""
        try:
            return await self._log.load(subject)
        except DecodeError:
            return ()

    async def _publish_again(self, stored_report: Recorded[Report], now: datetime, evidence: Evidence) -> Change | None:
        """Return a report whose stage handled it without effect, to be published again."""
        is_old = now - stored_report.time >= self._policy.threshold
        if not is_old or not await evidence.is_dealt_with(stored_report.message, stored_report.sequence):
            return None
        message_id = ids.report_id(
            stored_report.message.proof or "", f"{stored_report.subject}:{stored_report.sequence}"
        )
        return Change(Publish(stored_report.subject, stored_report.message, message_id=message_id))
