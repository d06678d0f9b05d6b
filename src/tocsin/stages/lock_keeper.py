"""Lock keeper: lets one execution of a job run at a time (hip-62, Distributed Locking; ojs-cron §6, `skip`).

consumes  planned, and what ends an execution
folds     the job's lock, and the execution that holds it
appends   acquired, then admitted; or skipped
projects  KV `locks`, for those who look there as hip-62 says; the lock itself is in the log
"""

import json

from .. import subjects
from ..domain import execution, lock
from ..domain.events import Message, Planned, Recorded, Terminal
from ..domain.execution import Execution
from ..domain.lock import Lock
from ..ports import Clock, EventLog, Projections
from ..subjects import Bucket, Stream, lock_key
from .announcements import Announcements
from .entities import Entities
from .stage import Stage, Subscription


def lock_keeper(log: EventLog, executions: Entities[Execution], projections: Projections, clock: Clock) -> Stage:
    """The lock's fact first, the execution's second: a crash between them leaves a lock that is already its own."""
    locks = Entities(log, lock.initial, lock.evolve)
    announcements = Announcements(log, clock)

    async def on_planned(recorded: Recorded[Message]) -> None:
        wanted = recorded.message
        if not isinstance(wanted, Planned):
            return
        scope = subjects.scope_of(wanted)
        executions.learn(scope, recorded, after=0)
        state, _ = await executions.load(scope)
        if state.status is execution.Status.PLANNED:
            held = await acquire(wanted)
            mine = held.holder == wanted.execution_id
            decided = execution.admit(state, fence=held.fence) if mine else execution.skip(state, active=held.holder or "")
            for fact in decided:
                await executions.append(scope, fact)
                _, sequence = await executions.load(scope)
                await announcements.decided(fact, after=sequence)
        else:
            await announce_again(wanted)

    async def acquire(wanted: Planned) -> Lock:
        """The lock as it is after asking for it: held by `wanted`, or by one that is still active."""
        scope = subjects.lock(wanted.job)
        state, _ = await locks.load(scope)
        if state.holder not in {None, wanted.execution_id} and not await is_over(wanted.job, str(state.holder)):
            return state
        for fact in lock.acquire(state, wanted):
            state = await locks.append(scope, fact)
        value = {"execution_id": wanted.execution_id, "acquired_at": clock.now().isoformat(), "ttl": lock.ttl(wanted)}
        await projections.put(Bucket.LOCKS, lock_key(wanted.job), json.dumps(value).encode(), ttl=lock.ttl(wanted))
        return state

    async def is_over(job: str, execution_id: str) -> bool:
        scope = subjects.execution(job, execution_id)
        state, _ = await executions.load(scope)
        if not state.is_over:
            executions.forget(scope)
            state, _ = await executions.load(scope)
        # What the log does not know any more was archived, and only what is over is archived.
        return state.is_over or state.status is execution.Status.UNKNOWN

    async def announce_again(wanted: Planned) -> None:
        """It was decided before; make sure that it was also said."""
        for subject in subjects.admissions(wanted.job, wanted.execution_id):
            if (decided := await log.last(subject)) is not None:
                await announcements.decided(decided.message, after=decided.sequence)

    async def on_end(recorded: Recorded[Message]) -> None:
        end = recorded.message
        if not isinstance(end, Terminal) or end.fence is None:
            return
        shown = await projections.get(Bucket.LOCKS, lock_key(end.job))
        if shown is not None and json.loads(shown[0])["execution_id"] == end.execution_id:
            await projections.remove(Bucket.LOCKS, lock_key(end.job), expect=shown[1])

    ends = tuple(subjects.every(f"execution.{end}") for end in ("completed", "failed", "cancelled"))
    return Stage(
        "lock_keeper",
        (
            Subscription(
                "lock-keeper", Stream.LOG, (subjects.every("execution.planned"),), on_planned, in_order_by=subjects.job_of
            ),
            Subscription("lock-keeper-ends", Stream.LOG, ends, on_end),
        ),
    )
