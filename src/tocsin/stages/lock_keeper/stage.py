"""Lock keeper: lets one execution of a job run at a time (hip-62, Distributed Locking; ojs-cron §6, CRON-18).

consumes  planned, recovered, and what ends an execution
folds     the job's lock, and the executions that hold it and wait for it
appends   acquired, then admitted; queued (`enqueue`); skipped (`skip`); cancelled, for the one before (`cancel_previous`)
projects  KV `locks` (`lock_display`); the lock itself is in the log
"""

from collections.abc import Sequence
from typing import Final, TypeGuard

from ... import subjects
from ...domain import execution
from ...domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    Failed,
    Message,
    Planned,
    Queued,
    Recorded,
    Recovered,
    Skipped,
    Terminal,
)
from ...domain.execution import Execution, Status
from ...engine.public_events import ANNOUNCED, PublicEvents
from ...engine.stage import Access, Stage, Subscription
from ...engine.state_cache import StateCache
from ...ports import Clock, EventLog, Projections, StaleRead
from ...subjects import Bucket, Stream
from .locks import Locks

ACCESS: Final = Access(
    appends=(Acquired, Queued, Admitted, Skipped, Cancelled, *ANNOUNCED),
    reads=(Stream.LOG,),
    writes=((Bucket.LOCKS, ">"),),
)


def lock_keeper(log: EventLog, executions: StateCache[Execution], projections: Projections, clock: Clock) -> Stage:
    """The lock's fact first, the execution's second: a crash between them leaves a lock that is already its own."""
    it = LockKeeper(log, executions, projections, clock)
    wanted = (subjects.filter_for("execution.planned"), subjects.filter_for("execution.recovered"))
    ends = tuple(subjects.filter_for(f"execution.{end}") for end in ("completed", "failed", "cancelled"))
    return Stage(
        "lock_keeper",
        (
            Subscription(
                subjects.LOCK_KEEPER,
                Stream.LOG,
                wanted,
                it.on_wanted,
                ordering_key=subjects.job_of,
                prepare=it.before_wanted,
            ),
            Subscription(
                subjects.LOCK_KEEPER_ENDS, Stream.LOG, ends, it.on_end, prepare=it.before_ends, low_priority=True
            ),
        ),
        access=ACCESS,
        loops=(it.display.run,),
    )


class LockKeeper:
    """The lock keeper's handlers."""

    def __init__(
        self, log: EventLog, executions: StateCache[Execution], projections: Projections, clock: Clock
    ) -> None:
        self._log = log
        self._executions = executions
        self._announcements = PublicEvents(log, clock)
        self._locks = Locks(log, executions, projections, clock, self._announcements)
        self.display = self._locks.display

    async def before_wanted(self, several: Sequence[Recorded[Message]]) -> None:
        """Read the locks that are not remembered, for all that want one."""
        await self._locks.recall([one.message for one in several if isinstance(one.message, Planned)])

    async def on_wanted(self, recorded: Recorded[Message]) -> None:
        """An execution wants to run, or was found lost on its way to a decision on that."""
        match recorded.message:
            case Planned() as wanted:
                scope = subjects.scope_of(wanted)
                # Read, unless it is remembered: were it decided long ago, taking its lock would be found out too late.
                await self._executions.load(scope)
                self._executions.learn(scope, recorded, after=0)  # a replica that lags may not even know of it
                await self._decide(wanted)
            case Recovered() as lost:
                scope = subjects.scope_of(lost)
                self._executions.forget(scope)
                state, sequence = await self._executions.load(scope)
                if sequence < recorded.sequence:
                    raise StaleRead(f"{scope}: a replica that lags was read")
                if isinstance(state.requested, Planned) and state.status is Status.PLANNED:
                    await self._locks.read(lost.job)
                    await self._decide(state.requested)

    async def _decide(self, wanted: Planned) -> None:
        scope = subjects.scope_of(wanted)
        state, sequence = await self._executions.load(scope)
        if state.status is not Status.PLANNED:
            await self._locks.announce_again(wanted.job, wanted.execution_id)
            return
        held = await self._locks.ask(wanted)
        if held.holder == wanted.execution_id:
            await self._locks.admit(wanted.job, held)
        elif not held.has_waiter(wanted.execution_id):
            for fact in execution.skip(state, active=held.holder or ""):
                _, stored = await self._executions.append(scope, fact, behind=(state, sequence))
                await self._announcements.decided(fact, after=stored)

    async def before_ends(self, several: Sequence[Recorded[Message]]) -> None:
        """Read the locks that may be handed on: who queued before an end is for whoever sees that end."""
        if jobs := {end.job for end in (one.message for one in several) if _may_hold(end)}:
            await self._locks.look(jobs)

    async def on_end(self, recorded: Recorded[Message]) -> None:
        """An execution is over: its lock needs no fact, but is shown no more, and the next one may have it."""
        end = recorded.message
        if not _may_hold(end):
            return
        self.display.released(end.job, end.execution_id)
        # Whoever queues behind this end sees it, and hands the lock on.
        await self._locks.know(end.job, at=recorded.sequence)
        held = await self._locks.hand_on(end.job)
        if held.holder != end.execution_id:
            await self._locks.see_through(end, held)
            await self._locks.admit(end.job, held)


def _may_hold(end: Message) -> TypeGuard[Terminal]:
    """Without a fence it had no lock; but what ended before it was admitted may have been given one that nobody used."""
    if not isinstance(end, Terminal):
        return False
    return (
        end.fence is not None or isinstance(end, Cancelled) or (isinstance(end, Failed) and end.reason == "abandoned")
    )
