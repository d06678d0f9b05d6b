"""Lock keeper: lets one execution of a job run at a time (hip-62, Distributed Locking; ojs-cron §6, `skip`).

consumes  planned, and what ends an execution
folds     the job's lock, and the execution that holds it
appends   acquired, then admitted; or skipped
projects  KV `locks`, for those who look there as hip-62 says; the lock itself is in the log
"""

import json

import structlog

from .. import subjects
from ..domain import execution, lock
from ..domain.events import Admitted, Message, Planned, Recorded, Terminal
from ..domain.execution import Execution, Status
from ..domain.lock import Lock
from ..ports import Clock, EventLog, Projections, SequenceConflict
from ..stage import Stage, Subscription
from ..subjects import Bucket, Stream, lock_key
from .announcements import Announcements
from .entities import Entities

_log = structlog.get_logger("tocsin.stages")


def lock_keeper(log: EventLog, executions: Entities[Execution], projections: Projections, clock: Clock) -> Stage:
    """The lock's fact first, the execution's second: a crash between them leaves a lock that is already its own."""
    it = LockKeeper(log, executions, projections, clock)
    planned = (subjects.every("execution.planned"),)
    ends = tuple(subjects.every(f"execution.{end}") for end in ("completed", "failed", "cancelled"))
    return Stage(
        "lock_keeper",
        (
            Subscription("lock-keeper", Stream.LOG, planned, it.on_planned, in_order_by=subjects.job_of),
            Subscription("lock-keeper-ends", Stream.LOG, ends, it.on_end),
        ),
    )


class LockKeeper:
    """The lock keeper's handlers."""

    def __init__(self, log: EventLog, executions: Entities[Execution], projections: Projections, clock: Clock) -> None:
        self._log = log
        self._executions = executions
        self._projections = projections
        self._clock = clock
        self._locks = Entities(log, lock.initial, lock.evolve)
        self._announcements = Announcements(log, clock)

    async def on_planned(self, recorded: Recorded[Message]) -> None:
        """An execution wants to run."""
        wanted = recorded.message
        if not isinstance(wanted, Planned):
            return
        scope = subjects.scope_of(wanted)
        # Read, unless it is remembered: were it decided long ago, taking its lock first would be found out too late.
        await self._executions.load(scope)
        self._executions.learn(scope, recorded, after=0)  # a replica that lags may not even know that it was planned
        state, sequence = await self._executions.load(scope)
        if state.status is not Status.PLANNED:
            await self._announce_again(wanted, state)
            return
        held = await self._acquire(wanted)
        mine = held.holder == wanted.execution_id
        decided = execution.admit(state, fence=held.fence) if mine else execution.skip(state, active=held.holder or "")
        for fact in decided:
            _, stored = await self._executions.append(scope, fact, behind=(state, sequence))
            await self._announcements.decided(fact, after=stored)

    async def on_end(self, recorded: Recorded[Message]) -> None:
        """An execution is over: its lock needs no fact, but is shown no more."""
        end = recorded.message
        if not isinstance(end, Terminal) or end.fence is None:
            return
        shown = await self._projections.get(Bucket.LOCKS, lock_key(end.job))
        if shown is not None and json.loads(shown[0])["execution_id"] == end.execution_id:
            await self._projections.remove(Bucket.LOCKS, lock_key(end.job), expect=shown[1])

    async def _acquire(self, wanted: Planned) -> Lock:
        """The lock as it is after asking for it: held by `wanted`, or by one that is still active."""
        scope = subjects.lock(wanted.job)
        state, sequence = await self._locks.load(scope)
        if state.holder not in {None, wanted.execution_id} and not await self._is_over(wanted.job, str(state.holder)):
            return state
        for fact in lock.acquire(state, wanted):
            state, sequence = await self._locks.append(scope, fact, behind=(state, sequence))
        await self._show(wanted)
        return state

    async def _is_over(self, job: str, execution_id: str) -> bool:
        scope = subjects.execution(job, execution_id)
        state, sequence = await self._executions.load(scope)
        if not state.is_over and not await self._executions.is_newest(scope, sequence):
            state, sequence = await self._executions.load(scope)
            if not state.is_over and not await self._executions.is_newest(scope, sequence):
                raise SequenceConflict(f"{scope}: a replica that lags was read")
        # What the log does not know any more was archived, and only what is over is archived.
        return state.is_over or state.status is Status.UNKNOWN

    async def _show(self, wanted: Planned) -> None:
        ttl = lock.ttl(wanted)
        value = {"execution_id": wanted.execution_id, "acquired_at": self._clock.now().isoformat(), "ttl": ttl}
        try:
            await self._projections.put(Bucket.LOCKS, lock_key(wanted.job), json.dumps(value).encode(), ttl=ttl)
        except Exception as error:  # noqa: BLE001 - only shown: a lock taken for what is then not admitted blocks its job
            _log.warning("not shown", action="lock-not-shown", job=wanted.job, error=str(error))

    async def _announce_again(self, wanted: Planned, state: Execution) -> None:
        """It was decided before; make sure that it was also said."""
        for subject in subjects.admissions(wanted.job, wanted.execution_id):
            if (decided := await self._log.last(subject)) is not None:
                await self._announcements.decided(decided.message, after=decided.sequence)
                return
        if state.status is Status.SKIPPED or isinstance(state.requested, Admitted):
            raise SequenceConflict("the log's replica that answered has not seen the decision yet")
