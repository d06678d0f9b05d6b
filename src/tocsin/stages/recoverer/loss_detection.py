"""Proof that a stalled message is lost: no consumer will handle it any more.

Each durable is compared with the sequence of a message of its own stream: sequences of two streams say nothing about each
other. A stage of another stream is past a message if it is past the input that led to the message.

A message that waits is not lost. It may wait for a stage that is down, in the backlog of a queue, for a worker that was
never started, or for the lock. A message is lost if its durable has passed it and no event followed. A durable that does
not exist proves nothing: when it is created, it begins at the first undecided message.

The proof is conservative. If a lost task was queued after a task that runs for hours, the loss is found when that task
ends. If a proof were ever wrong, the task that is dispatched again replaces the first task, whose claim is then refused
(`execution.claim`).
"""

from collections.abc import Iterable
from typing import Final

from ... import subjects
from ...domain import execution, lock
from ...domain.events import Report, RetryTimer
from ...domain.execution import Execution
from ...domain.lock import Lock
from ...domain.recovery import Overdue, Stalled
from ...ports import EventLog, Progress
from ...subjects import Stream

_STREAMS: Final = {
    subjects.RETRIER: Stream.REPORTS,
    subjects.DAG_ADVANCER_REPORTS: Stream.REPORTS,
}
"""The stream of each durable; the others read the log."""


class Evidence:
    """The progress of the durables during one round of examinations.

    Each durable is read once, where that is enough.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: dict[str, Progress | None] = {}
        self._locks: dict[str, tuple[Lock, int]] = {}
        """Locks, each with its last sequence: one queue may hold most of what is stalled."""

    async def is_lost(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether a stalled message is lost."""
        match stalled.lost.what:
            case "planned":
                return await self._is_past_the_lock_keeper(stalled, state)
            case "dispatched":
                return await self._is_past(
                    subjects.executor_durable(stalled.queue or subjects.DEFAULT_QUEUE), stalled.sequence
                )
            case "retry-scheduled":
                return await self._has_no_delay(stalled, state)
            case "admitted":
                return await self._is_past_the_dag_advancer(stalled, state)

    async def was_handed_over(self, overdue: Overdue) -> bool:
        """Return whether the time limit of a task counts.

        It does not count while the task waits for an MQ bridge that is down.
        """
        return overdue.delivery is not None or await self._is_past(subjects.MQ_BRIDGE, overdue.task, missing=True)

    async def is_dealt_with(self, report: Report, sequence: int) -> bool:
        """Return whether the stage that decides on a report has handled it."""
        durable = subjects.RETRIER if report.outcome == "failed" else subjects.DAG_ADVANCER_REPORTS
        return await self._is_past(durable, sequence)

    async def _is_past_the_dag_advancer(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether the DAG advancer has handled everything on which it could dispatch the step.

        That is the admission, and the reports on the steps before it.
        """
        if not await self._is_past(subjects.DAG_ADVANCER, stalled.sequence):
            return False
        return await self._has_handled(
            subjects.DAG_ADVANCER_REPORTS, subjects.reports_of(state.request, outcome="completed")
        )

    async def _is_past_the_lock_keeper(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether the lock keeper has handled everything that could admit the execution.

        That is the request for the lock, and the end of the execution that holds it.
        """
        durables = subjects.LOCK_KEEPER, subjects.LOCK_KEEPER_ENDS
        if not await self._are_past(durables, stalled.sequence):
            return False
        request = state.request
        scope = subjects.lock(request.job)
        held = await self._newest_lock(scope)
        if held is None:
            return False  # a lagging replica answered; it may not know that the execution waits
        upto = held.fence
        if held.holder is not None and held.has_waiter(request.execution_id):
            of_holder = await self._log.load(subjects.execution(request.job, held.holder))
            if of_holder and not execution.fold(of_holder).is_over:
                return False
            upto = max([upto, *(fact.sequence for fact in of_holder)])
        return await self._are_past(durables, upto)

    async def _newest_lock(self, scope: str) -> Lock | None:
        """Return the newest state of a lock; None: only an older state was read."""
        for _ in range(2):
            if scope not in self._locks:
                events = await self._log.load(scope)
                self._locks[scope] = lock.fold(events), events[-1].sequence if events else 0
            state, sequence = self._locks[scope]
            if await self._log.tail(scope) == sequence:
                return state
            del self._locks[scope]
        return None

    async def _has_no_delay(self, stalled: Stalled, state: Execution) -> bool:
        """Return whether no delay is stored and the timer that it published is handled.

        The retrier stores the delay before it acknowledges the report of failure. The order of the reads matters: a delay
        that fires between them is found as a timer.
        """
        lost, request = stalled.lost, state.request
        step, attempt = lost.step or "", lost.attempt or 0
        failures = subjects.reports_on(request.job, request.execution_id, step, attempt, outcome="failed")
        if not await self._has_handled(subjects.RETRIER, failures):
            return False
        timer = RetryTimer(job=request.job, execution_id=request.execution_id, step=step, attempt=attempt + 1)
        if await self._log.tail(subjects.delay(timer)):
            return False
        fired = await self._log.tail(subjects.subject_of(timer))
        return not fired or await self._is_past(subjects.DAG_ADVANCER_TIMERS, fired)

    async def _has_handled(self, durable: str, inputs: str) -> bool:
        """Return whether a durable has handled every message of a filter; archived messages are."""
        newest = await self._log.tail(inputs)
        return not newest or await self._is_past(durable, newest)

    async def _are_past(self, durables: Iterable[str], sequence: int) -> bool:
        return all([await self._is_past(durable, sequence) for durable in durables])

    async def _is_past(self, durable: str, sequence: int, *, missing: bool = False) -> bool:
        known = self._known.get(durable)
        # A durable that was idle when it was read may have messages stored since then.
        if durable not in self._known or (known is not None and known.is_idle and known.floor < sequence):
            known = self._known[durable] = await self._log.progress(_STREAMS.get(durable, Stream.LOG), durable)
        return missing if known is None else known.is_past(sequence)
