"""The locks of all jobs: acquire a lock, hand it on, and admit its holder.

The lock's event is stored first, the execution's second. After a crash between the two, the execution already holds the
lock, and the next decision on the job admits it.

No guard covers both scopes. A process may pause after reading that an execution is planned and before acquiring its lock.
If the execution is skipped or cancelled meanwhile, the process then stores an `acquired` event too many. The event does no
harm: the execution's own guard refuses to admit it, an execution that is over holds no lock, so the next request acquires
the lock, and the lock is never shown in the bucket. An atomic batch over both scopes would refuse the event, but would cut
the rate of all locks to a hundredth.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from ... import subjects, telemetry
from ...domain import execution, lock
from ...domain.events import Acquired, Admitted, Message, Planned, Recorded, Terminal
from ...domain.execution import Execution, Status
from ...domain.lock import Lock
from ...domain.lock_queue import Waiter
from ...engine.public_events import PublicEvents
from ...engine.state_cache import StateCache
from ...ports import Clock, EventLog, Projections, SequenceConflict, StaleRead
from .lock_projection import LockProjection

LONG_QUEUE: Final = 2
"""A warning is logged when more executions wait for a lock (CRON-S04), and each time that twice as many do."""
ACQUISITIONS_PER_READ: Final = 10
"""Acquisitions that are read at a time; in most cases the first decides."""
TRIES: Final = 1_000
"""Each try passes one waiting execution that is over already."""

_log = telemetry.get_logger("tocsin.stages")


class Locks:
    """Acquires locks for executions, hands them on, and admits their holders."""

    def __init__(
        self,
        log: EventLog,
        executions: StateCache[Execution],
        projections: Projections,
        clock: Clock,
        public_events: PublicEvents,
        key: bytes,
    ) -> None:
        """`key`: the installation's key, for the tasks that it dispatches."""
        self._log = log
        self._key = key
        self._executions = executions
        self._locks = StateCache(log, lock.initial, lock.evolve)
        self._public_events = public_events
        self.projection = LockProjection(projections, clock, self.is_over)

    async def recall(self, batch: Sequence[Planned]) -> None:
        """Read in one request the uncached locks, executions and public events of a batch.

        Most jobs run rarely, so most of their locks are not cached.
        """
        loaders: dict[str, Callable[[Sequence[Recorded[Message]]], None]] = {}
        for planned in batch:
            lock_scope, scope = subjects.lock(planned.job), subjects.scope_of(planned)
            if not self._locks.knows(lock_scope):
                loaders[lock_scope] = partial(self._locks.fill, lock_scope)
                subject = subjects.public_event("triggered", planned.job)
                loaders[subject] = partial(self._public_events.fill, subject)
            if not self._executions.knows(scope):
                loaders[scope] = partial(self._executions.fill, scope)
        if loaders:
            loaded = await self._log.load_each(*loaders)
            for load, events in zip(loaders.values(), loaded.facts, strict=True):
                load(events)

    async def reload(self, jobs: Collection[str]) -> None:
        """Read several locks in one request, because another process may have changed them."""
        await self._locks.refresh([subjects.lock(job) for job in jobs])

    async def load_up_to(self, job: str, sequence: int) -> None:
        """Ensure that a job's cached lock includes all events up to a sequence."""
        if not self._locks.accounts_for(subjects.lock(job), sequence):
            await self.load_newest(job)

    async def load_newest(self, job: str) -> None:
        """Ensure that a job's cached lock is the newest."""
        scope = subjects.lock(job)
        for _ in range(2):
            _, sequence = await self._locks.load(scope)
            if await self._locks.is_newest(scope, sequence):
                return
        raise StaleRead.of(scope)

    async def request(self, planned: Planned) -> Lock:
        """Request a job's lock for an execution and return the lock.

        Afterwards the execution holds the lock or waits for it; otherwise another active execution holds it, and the
        execution must be skipped.
        """
        waiter, scope = lock.waiting(planned), subjects.lock(planned.job)
        for _ in range(TRIES):
            state = await self.hand_on(planned.job)
            _, sequence = known = await self._locks.load(scope)
            if known[0] != state:
                continue
            if state.holder is None or (
                state.holder != waiter.execution_id and await self.is_over(planned.job, state.holder)
            ):
                if state.waiting.first is not None:
                    continue  # the holder ended just now, and the lock goes to an execution that waits already
                return await self._acquire(planned.job, waiter, ttl=lock.ttl(planned), known=(state, sequence))
            if state.holder == waiter.execution_id or state.has_waiter(waiter.execution_id):
                return state
            active = subjects.execution(planned.job, state.holder)
            policy = lock.effective_policy(state, planned, (await self._executions.load(active))[0].requested)
            if policy == "cancel_previous":
                reason = f"superseded by {waiter.execution_id}"
                await self._executions.decide(active, partial(execution.cancel, reason=reason))
            elif policy == "enqueue":
                await self._queue(planned.job, waiter, known=(state, sequence))
            else:
                return state
        raise SequenceConflict(f"the lock of {planned.job} moved {TRIES} times")

    async def hand_on(self, job: str) -> Lock:
        """Hand a free lock to the earliest waiting execution and return the lock."""
        for _ in range(TRIES):
            state, sequence = await self._locks.load(subjects.lock(job))
            first = state.waiting.first
            if first is None or state.holder is None or not await self.is_over(job, state.holder):
                return state
            waiting, _ = await self._load_planned(job, first.execution_id)
            requested = waiting.requested
            ttl = lock.ttl(requested) if requested else lock.GRACE_S
            held = await self._acquire(job, first, ttl=ttl, known=(state, sequence))
            await self.admit(job, held)
        raise SequenceConflict(f"the lock of {job} moved {TRIES} times")

    async def _acquire(self, job: str, waiter: Waiter, *, ttl: float, known: tuple[Lock, int]) -> Lock:
        for event in lock.acquire(known[0], job, waiter, ttl=ttl):
            known = await self._locks.append(subjects.lock(job), event, known=known)
        self.projection.held(job, waiter.execution_id, ttl=ttl)
        return known[0]

    async def _queue(self, job: str, waiter: Waiter, *, known: tuple[Lock, int]) -> None:
        for event in lock.queue(known[0], job, waiter):
            held, _ = await self._locks.append(subjects.lock(job), event, known=known)
            if (waiting := len(held.waiting)) > LONG_QUEUE and (waiting - 1).bit_count() == 1:
                _log.warning("many executions wait for a lock", action="queue-grows", job=job, waiting=waiting)

    async def admit(self, job: str, held: Lock) -> None:
        """Admit the holder of a lock, unless it is admitted or over already."""
        if held.holder is None:
            return
        scope = subjects.execution(job, held.holder)
        known = await self._load_planned(job, held.holder)
        for admitted in execution.admit(known[0], fence=held.fence):
            event = execution.admit_and_dispatch(admitted, key=self._key)
            _, stored = await self._executions.append(scope, event, known=known)
            await self._public_events.announce(event, sequence=stored)
        if known[0].status is not Status.PLANNED:  # another process decided, and may have died before announcing
            await self.announce_again(job, held.holder)

    async def announce_successor(self, end: Terminal, held: Lock) -> None:
        """Announce the execution that acquired the lock after an ended execution.

        The process that admitted the successor may have died before announcing it, and the successor may be over too. The
        end of the successor takes care of the executions after it.
        """
        after, has_passed = end.fence, True
        if after is None:  # cancelled before it was admitted, but it may have had the lock
            after, has_passed = await self._planned_at(end), False
        while acquired := await self._log.read(
            subjects.acquisitions(end.job), after=after, limit=ACQUISITIONS_PER_READ
        ):
            for recorded in acquired:
                after, event = recorded.sequence, recorded.message
                if not isinstance(event, Acquired) or (has_passed and await self._announce_holder(event)):
                    return
                has_passed = has_passed or event.execution_id == end.execution_id
        if after < held.fence:
            raise StaleRead.of(subjects.lock(end.job))

    async def _announce_holder(self, acquired: Acquired) -> bool:
        """Announce an ended holder; return whether its own end handles its successors.

        That is so if the holder is not over yet, or was admitted.
        """
        job, execution_id = acquired.job, acquired.execution_id
        if not await self.is_over(job, execution_id):
            return True
        state, _ = await self._executions.load(subjects.execution(job, execution_id))
        is_admitted = isinstance(state.requested, Admitted)
        if is_admitted or state.status is Status.SKIPPED:
            await self.announce_again(job, execution_id)
        return is_admitted

    async def _planned_at(self, end: Terminal) -> int:
        state, sequence = await self._load_planned(end.job, end.execution_id)
        if not isinstance(state.requested, Planned):
            return sequence
        planned = await self._log.last(subjects.subject_of(state.requested))
        if planned is None:
            raise StaleRead.of(subjects.lock(end.job))
        return planned.sequence

    async def announce_again(self, job: str, execution_id: str) -> None:
        """Announce the stored decision on an execution, unless it is announced already."""
        for subject in subjects.admissions(job, execution_id):
            if (decision := await self._log.last(subject)) is not None:
                await self._public_events.announce(decision.message, sequence=decision.sequence)
                return
        state, _ = await self._executions.load(subjects.execution(job, execution_id))
        if state.status is Status.SKIPPED or isinstance(state.requested, Admitted):
            raise StaleRead.of(subjects.execution(job, execution_id))

    async def _load_planned(self, job: str, execution_id: str) -> tuple[Execution, int]:
        """Load an execution that a lock names, even if a lagging replica misses it."""
        scope = subjects.execution(job, execution_id)
        known = await self._executions.load(scope)
        if known[0].status is Status.UNKNOWN and not await self._executions.is_newest(scope, known[1]):
            known = await self._executions.load(scope)
            if known[0].status is Status.UNKNOWN and not await self._executions.is_newest(scope, known[1]):
                raise StaleRead.of(scope)
        return known

    async def is_over(self, job: str, execution_id: str) -> bool:
        """Return whether an execution is over, by its newest state.

        Raises:
            StaleRead: a lagging replica was read.
        """
        scope = subjects.execution(job, execution_id)
        state, sequence = await self._executions.load(scope)
        if not state.is_over and not await self._executions.is_newest(scope, sequence):
            state, sequence = await self._executions.load(scope)
            if not state.is_over and not await self._executions.is_newest(scope, sequence):
                raise StaleRead.of(scope)
        # An execution that is not in the log any more was archived, and only executions that are over are archived.
        return state.is_over or state.status is Status.UNKNOWN
