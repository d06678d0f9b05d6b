"""The claim before an attempt, and the report after it (docs/internals/decisions.md, ADR 3)."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from .. import subjects, telemetry
from ..domain import execution, ids
from ..domain.events import Dispatched, Failure, Message, Recorded, Report, Started
from ..domain.execution import ClaimDenied
from ..ports import Clock, Delivery, EventLog, LogUnavailable, SequenceConflict
from .cancellations import RecentEvents
from .outcome import Failed, Succeeded, retry_delay

TRIES: Final = 5
"""Reads without a new event after which a claim is given up. Other conflicts mean that another writer stored an event."""
CAPACITY: Final = 256
"""The number of executions whose recent events are kept."""

_log = telemetry.get_logger("tocsin.worker")


@dataclass(frozen=True, slots=True)
class Claimed:
    """The sequence of the `started` fact, and of the fact before it.

    None if that is unknown.
    """

    sequence: int
    after: int | None


class Claims:
    """The claims of one worker.

    Claims on steps of one execution wait for each other, and share what was read of it. So the worker reads each event of
    a graph about once, and its own claims do not refuse each other.
    """

    def __init__(self, log: EventLog, worker: str) -> None:
        """Claim in `log` under the name `worker`."""
        self._log = log
        self._worker = worker
        self._recent: OrderedDict[str, RecentEvents] = OrderedDict()

    async def claim(self, task: Dispatched, delivery: Delivery) -> Claimed | ClaimDenied | None:
        """Claim one delivery of a task.

        None if there were too many conflicts, or the execution could not be read. A task must not run if its execution is
        over, if its step is done, or if a later delivery holds it. If the task is the newest known fact of its execution,
        the first try reads nothing, and its own sequence guards the append. If there are newer facts, they are usually
        about other steps of the same execution, so only those that are not known yet are read. A denial is decided only
        from a read that contains the task itself, because a lagging replica may have answered.

        Raises:
            LogUnavailable: the log does not answer.
        """
        if task.sole is not None:
            return await self._claim(task, delivery, RecentEvents())
        recent = self._recent_events(subjects.scope_of(task))
        async with recent.lock:
            return await self._claim(task, delivery, recent)

    async def _claim(self, task: Dispatched, delivery: Delivery, recent: RecentEvents) -> Claimed | ClaimDenied | None:
        scope, started = subjects.scope_of(task), _started(task, delivery, self._worker)
        expect = delivery.sequence
        fruitless = 0
        while fruitless < TRIES:
            if recent.affect(task.step, after=expect):
                facts = await self._log.load(scope)
                if (claim := _find(facts, started)) is not None:
                    # An earlier try stored it and its reply was lost; or a crashed server began to count deliveries again.
                    return ClaimDenied("done") if await answered(self._log, task) else claim
                if not facts or facts[-1].sequence < delivery.sequence:
                    fruitless += 1
                    continue
                granted = _granted(facts, task, delivery, self._worker)
                if isinstance(granted, ClaimDenied):
                    return granted
                expect = facts[-1].sequence
            else:
                expect = recent.newest(after=expect)
            try:
                sequence = await self._log.append(started, expect=expect)
            except SequenceConflict:
                newer = await self._log.load(scope, after=expect)
                fruitless += recent.add(newer, after=expect) < 1
            else:
                recent.add_own(task.step, sequence, after=expect)
                return Claimed(sequence, expect)
        return None

    def _recent_events(self, scope: str) -> RecentEvents:
        if (recent := self._recent.get(scope)) is None:
            recent = self._recent[scope] = RecentEvents()
        self._recent.move_to_end(scope)
        if len(self._recent) > CAPACITY:
            self._recent.popitem(last=False)
        return recent


async def answered(log: EventLog, task: Dispatched) -> bool:
    """Return whether a valid report on this attempt is stored.

    A success, or a failure from the newest claim. If it is, the work is not repeated: only its acknowledgement was lost.

    Raises:
        LogUnavailable: the log does not answer.
    """
    reports = [r.message for r in await log.load(subjects.reports(task)) if isinstance(r.message, Report)]
    if not reports:
        return False
    if any(report.outcome == "completed" for report in reports):
        return True
    newest = await log.last(subjects.claims(task))
    current = newest.message.delivery if newest is not None and isinstance(newest.message, Started) else None
    return any(report.delivery in {None, current} for report in reports)


async def denied(log: EventLog, task: Dispatched, delivery: Delivery, *, worker: str) -> ClaimDenied | None:
    """Return why a claim of a task would be denied.

    None: it may be claimed, or a lagging replica answered.

    Raises:
        LogUnavailable: the log does not answer.
    """
    if await answered(log, task):
        return ClaimDenied("done")
    facts = await log.load(subjects.scope_of(task))
    if not facts or facts[-1].sequence < delivery.sequence:
        return None
    granted = _granted(facts, task, delivery, worker)
    return granted if isinstance(granted, ClaimDenied) else None


def report_of(task: Dispatched, outcome: Succeeded | Failed, claimed: Claimed, *, delivery: int, worker: str) -> Report:
    """Return the report of an attempt, for the DAG advancer or the retrier."""
    result: JsonValue = None
    error: Failure | None = None
    match outcome:
        case Succeeded():
            result = outcome.result
        case Failed():
            error = outcome.failure
    return Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed" if error is None else "failed",
        step=task.step,
        attempt=task.attempt,
        delivery=delivery,
        result=result,
        error=error,
        token=task.token,
        worker=worker,
        claim=claimed.sequence,
        claimed_after=claimed.after,
        sole=execution.sole_step(task) if error is None else None,
    )


async def store_report(log: EventLog, clock: Clock, report: Report) -> None:
    """Store a report, retrying until the log answers.

    The message id lets the log store it once.

    Raises:
        RequestRefused: the log does not accept the report; for example, it is too large.
    """
    subject = subjects.subject_of(report)
    message_id = ids.report_id(report.token, subject)
    failures = 0
    while True:
        try:
            await log.publish(subject, report, message_id=message_id)
        except LogUnavailable as error:
            failures += 1
            _log.warning(
                "report waits for the log",
                action="report-waits",
                execution_id=report.execution_id,
                step=report.step,
                tries=failures,
                error=str(error),
            )
            await clock.sleep(retry_delay(failures))
        else:
            return


def _started(task: Dispatched, delivery: Delivery, worker: str) -> Started:
    return Started(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery.delivered,
        worker=worker,
    )


def _granted(
    facts: Sequence[Recorded[Message]], task: Dispatched, delivery: Delivery, worker: str
) -> Started | ClaimDenied:
    return execution.claim(
        execution.fold(facts),
        step=task.step,
        attempt=task.attempt,
        delivery=delivery.delivered,
        task=delivery.sequence,
        worker=worker,
    )


def _find(facts: Sequence[Recorded[Message]], started: Started) -> Claimed | None:
    """Find a claim among facts.

    The fact before it is known only if the claim is the newest fact.
    """
    index = next((i for i, recorded in enumerate(facts) if recorded.message == started), None)
    if index is None:
        return None
    return Claimed(facts[index].sequence, facts[-2].sequence if 0 < index == len(facts) - 1 else None)
