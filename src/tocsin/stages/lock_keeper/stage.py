"""Lock keeper: admits one execution of a job at a time (hip-62; CRON-18).

The lock's event is stored first, the execution's second: a crash between the two leaves a lock that its holder already has,
and the redelivery does the rest (hip-62, Distributed Locking; ojs-cron §6). The KV bucket `locks` only shows the locks
(`lock_projection`).
"""

from collections.abc import Sequence
from typing import Final, TypeGuard

from ... import subjects
from ...domain import execution
from ...domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    Dispatched,
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


class LockKeeper:
    """Decides which execution has its job's lock."""

    def __init__(
        self, log: EventLog, executions: StateCache[Execution], projections: Projections, clock: Clock, key: bytes
    ) -> None:
        """`key`: the installation's key, for the tasks that it dispatches."""
        self._log = log
        self._executions = executions
        self._public_events = PublicEvents(log, clock)
        self._locks = Locks(log, executions, projections, clock, self._public_events, key)

    async def show_locks(self) -> None:
        """Keep the KV bucket `locks` up to date."""
        await self._locks.projection.run()

    async def before_planned(self, batch: Sequence[Recorded[Message]]) -> None:
        """Read in one request the locks that are not cached."""
        messages = (recorded.message for recorded in batch)
        await self._locks.recall([message for message in messages if isinstance(message, Planned)])

    async def on_planned(self, recorded: Recorded[Message]) -> None:
        """Decide whether a planned execution may run now; do it again for a recovered execution."""
        match recorded.message:
            case Planned() as planned:
                scope = subjects.scope_of(planned)
                # Load before learning: an execution that was decided long ago must not acquire the lock.
                await self._executions.load(scope)
                self._executions.learn(scope, recorded, after=0)  # a lagging replica may not have it yet
                await self._decide(planned)
            case Recovered() as recovered:
                scope = subjects.scope_of(recovered)
                self._executions.forget(scope)
                state, sequence = await self._executions.load(scope)
                if sequence < recorded.sequence:
                    raise StaleRead.of(scope)
                if isinstance(state.requested, Planned) and state.status is Status.PLANNED:
                    await self._locks.load_newest(recovered.job)
                    await self._decide(state.requested)

    async def _decide(self, planned: Planned) -> None:
        scope = subjects.scope_of(planned)
        state, sequence = await self._executions.load(scope)
        if state.status is not Status.PLANNED:
            await self._locks.announce_again(planned.job, planned.execution_id)
            return
        held = await self._locks.request(planned)
        if held.holder == planned.execution_id:
            await self._locks.admit(planned.job, held)
        elif not held.has_waiter(planned.execution_id):
            for event in execution.skip(state, active=held.holder or ""):
                _, stored = await self._executions.append(scope, event, known=(state, sequence))
                await self._public_events.announce(event, sequence=stored)

    async def before_ends(self, batch: Sequence[Recorded[Message]]) -> None:
        """Read in one request the locks that may be handed on."""
        if jobs := {end.job for end in (recorded.message for recorded in batch) if _may_hold(end)}:
            await self._locks.reload(jobs)

    async def on_end(self, recorded: Recorded[Message]) -> None:
        """Hand the lock of an ended execution to the next; the release has no event."""
        end = recorded.message
        if not _may_hold(end):
            return
        self._locks.projection.released(end.job, end.execution_id)
        # An execution that queues after this end reads the end and acquires the lock itself.
        await self._locks.load_up_to(end.job, recorded.sequence)
        held = await self._locks.hand_on(end.job)
        if held.holder != end.execution_id:
            await self._locks.announce_successor(end, held)
            await self._locks.admit(end.job, held)


def _may_hold(end: Message) -> TypeGuard[Terminal]:
    """Return whether an execution that ended may have the lock.

    Without a fencing token it was never admitted; but if it was cancelled or abandoned before, it may have the lock.
    """
    if not isinstance(end, Terminal):
        return False
    return (
        end.fence is not None or isinstance(end, Cancelled) or (isinstance(end, Failed) and end.reason == "abandoned")
    )


_PLANNED: Final = (subjects.filter_for("execution.planned"), subjects.filter_for("execution.recovered"))
_ENDS: Final = tuple(subjects.filter_for(f"execution.{end}") for end in ("completed", "failed", "cancelled"))

LOCK_KEEPER: Final = Stage(
    name="lock_keeper",
    purpose="lets one execution of a job run at a time",
    consumes="`planned`, `recovered`, ends of executions",
    decides="`acquired` and `admitted` or the first task, `queued`, `skipped`, or `cancelled`",
    access=Access(
        appends=(Acquired, Queued, Admitted, Dispatched, Skipped, Cancelled, *ANNOUNCED),
        reads=(Stream.LOG,),
        writes=((Bucket.LOCKS, ">"),),
    ),
    start=lambda context: LockKeeper(
        context.log, context.executions, context.projections, context.clock, context.report_key
    ),
    subscriptions=(
        Subscription(
            subjects.LOCK_KEEPER,
            Stream.LOG,
            _PLANNED,
            LockKeeper.on_planned,
            ordering_key=subjects.job_of,
            prepare=LockKeeper.before_planned,
        ),
        Subscription(
            subjects.LOCK_KEEPER_ENDS,
            Stream.LOG,
            _ENDS,
            LockKeeper.on_end,
            prepare=LockKeeper.before_ends,
            low_priority=True,
        ),
    ),
    loops=(LockKeeper.show_locks,),
)
