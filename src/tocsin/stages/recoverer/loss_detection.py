"""Whether what has stalled is lost: proof that nobody is going to deal with it any more.

Waiting is not being lost: behind a stage that is down, in the backlog of a queue, for a worker that was never started, or
for the lock. A message is proven lost where the durable that is to deliver it is past it, and yet nothing came of it. A
durable that does not exist proves nothing: once it is made, it begins where nothing is decided yet.

The proof is conservative. A task that was lost behind one that runs for hours is found when that one is done; and were a
proof ever wrong, the task that is dispatched anew replaces the other, which is then refused (`execution.claim`).
"""

from collections.abc import Iterable
from typing import Final

from ... import subjects
from ...domain import execution, lock
from ...domain.events import Report, RetryTimer
from ...domain.execution import Execution
from ...domain.recovery import Overdue, Stalled
from ...ports import EventLog, Progress
from ...subjects import Stream

_DISPATCHING: Final = (subjects.DAG_ADVANCER, subjects.DAG_ADVANCER_REPORTS)


class Evidence:
    """What is asked in one round: each durable once, where that is enough."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: dict[str, Progress | None] = {}

    async def is_lost(self, stalled: Stalled, state: Execution) -> bool:
        """Whether what has stalled will not go on by itself."""
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
                return await self._are_past(_DISPATCHING, stalled.sequence)

    async def was_handed_over(self, overdue: Overdue) -> bool:
        """Whether the time limit of a task counts: not while the bridge is down that is to hand it over."""
        return overdue.delivery is not None or await self._is_past(subjects.MQ_BRIDGE, overdue.task, missing=True)

    async def is_dealt_with(self, report: Report, sequence: int) -> bool:
        """Whether the stage that a report is for is done with it."""
        durable = subjects.RETRIER if report.outcome == "failed" else subjects.DAG_ADVANCER_REPORTS
        return await self._is_past(durable, sequence)

    async def _is_past_the_lock_keeper(self, stalled: Stalled, state: Execution) -> bool:
        """Whether nothing that could let it run is still to be handled: its own asking, nor the end that frees its lock."""
        durables = subjects.LOCK_KEEPER, subjects.LOCK_KEEPER_ENDS
        if not await self._are_past(durables, stalled.sequence):
            return False
        asked = state.request
        scope = subjects.lock(asked.job)
        facts = await self._log.load(scope)
        if await self._log.tail(scope) != max((fact.sequence for fact in facts), default=0):
            return False  # a replica that lags knows nothing of who waits
        held = lock.fold(facts)
        upto = held.fence
        if held.holder is not None and held.has_waiter(asked.execution_id):
            of_holder = await self._log.load(subjects.execution(asked.job, held.holder))
            if of_holder and not execution.fold(of_holder).is_over:
                return False
            upto = max([upto, *(fact.sequence for fact in of_holder)])
        return await self._are_past(durables, upto)

    async def _has_no_delay(self, stalled: Stalled, state: Execution) -> bool:
        """Whether neither the delay is stored nor what it published is still to be handled. The order of asking matters."""
        lost, asked = stalled.lost, state.request
        if not await self._is_past(subjects.RETRIER, stalled.sequence):
            return False
        timer = RetryTimer(
            job=asked.job, execution_id=asked.execution_id, step=lost.step or "", attempt=(lost.attempt or 0) + 1
        )
        if await self._log.tail(subjects.delay(timer)):
            return False
        fired = await self._log.tail(subjects.subject_of(timer))
        return not fired or await self._is_past(subjects.DAG_ADVANCER_TIMERS, fired)

    async def _are_past(self, durables: Iterable[str], sequence: int) -> bool:
        return all([await self._is_past(durable, sequence) for durable in durables])

    async def _is_past(self, durable: str, sequence: int, *, missing: bool = False) -> bool:
        known = self._known.get(durable)
        # That a durable was idle when it was asked says nothing of what was stored since.
        if durable not in self._known or (known is not None and known.is_idle and known.floor < sequence):
            known = self._known[durable] = await self._log.progress(Stream.LOG, durable)
        return missing if known is None else known.is_past(sequence)
