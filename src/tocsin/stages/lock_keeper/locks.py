"""The locks of all jobs: asking for one, handing it on, and letting its holder run.

The lock's fact comes first, the execution's second: a crash between them leaves a lock that is already its holder's, and
whoever looks next finishes that.

No guard spans both scopes. So a copy that slept between reading that an execution is still to be decided on and taking its
lock may store an `acquired` for one that was skipped or cancelled meanwhile. That fact is one too many, and does no harm: the
execution's own guard refuses to admit it, one that is over holds nothing, so whoever asks next takes the lock from it, and
it is never shown. (An atomic batch over both scopes would refuse it, at the price of every lock's rate: a hundredth.)
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from ... import subjects, telemetry
from ...domain import execution, lock
from ...domain.events import Acquired, Admitted, Message, Planned, Recorded, Terminal, Waiter
from ...domain.execution import Execution, Status
from ...domain.lock import Lock
from ...engine.public_events import PublicEvents
from ...engine.state_cache import StateCache
from ...ports import Clock, EventLog, Projections, SequenceConflict, StaleRead
from .lock_projection import LockProjection

MANY: Final = 2
"""More than so many that wait are worth a warning (CRON-S04)."""
FEW: Final = 10
"""Acquisitions that are read at a time: mostly the first one tells."""
TRIES: Final = 1_000
"""Those that wait and are over already are passed one by one."""

_log = telemetry.get_logger("tocsin.stages")


class Locks:
    """Who may run."""

    def __init__(
        self,
        log: EventLog,
        executions: StateCache[Execution],
        projections: Projections,
        clock: Clock,
        public_events: PublicEvents,
    ) -> None:
        self._log = log
        self._executions = executions
        self._locks = StateCache(log, lock.initial, lock.evolve, catches_up=False)
        self._public_events = public_events
        self.projection = LockProjection(projections, clock, self.is_over)

    async def recall(self, wanted: Sequence[Planned]) -> None:
        """Read at once what is not remembered, and is about to be decided upon: most jobs run once in a long while."""
        takers: dict[str, Callable[[Sequence[Recorded[Message]]], None]] = {}
        for one in wanted:
            lock_scope, scope = subjects.lock(one.job), subjects.scope_of(one)
            if not self._locks.knows(lock_scope):
                takers[lock_scope] = partial(self._locks.loaded, lock_scope)
                said = subjects.public_event("triggered", one.job)
                takers[said] = partial(self._public_events.loaded, said)
            if not self._executions.knows(scope):
                takers[scope] = partial(self._executions.loaded, scope)
        if takers:
            loaded = await self._log.load_each(*takers)
            for take, facts in zip(takers.values(), loaded.facts, strict=True):
                take(facts)

    async def look(self, jobs: Collection[str]) -> None:
        """Read several locks at once, whatever is remembered of them: somebody else may have queued."""
        scopes = [subjects.lock(job) for job in jobs]
        loaded = await self._log.load_each(*scopes)
        for scope, facts in zip(scopes, loaded.facts, strict=True):
            self._locks.loaded(scope, facts, upto=loaded.upto)

    async def know(self, job: str, *, at: int) -> None:
        """Know the state of a job's lock with all that was stored up to a sequence of the log, or more."""
        if not self._locks.accounts_for(subjects.lock(job), at):
            await self.read(job)

    async def read(self, job: str) -> None:
        """Know the newest state of a job's lock: somebody else may have queued since it was remembered."""
        scope = subjects.lock(job)
        for _ in range(2):
            _, sequence = await self._locks.load(scope)
            if await self._locks.is_newest(scope, sequence):
                return
        raise StaleRead.of(scope)

    async def ask(self, wanted: Planned) -> Lock:
        """The lock as it is after asking for it: held by `wanted`, awaited by it, or held by one that is active."""
        me, scope = lock.waiting(wanted), subjects.lock(wanted.job)
        for _ in range(TRIES):
            state = await self.hand_on(wanted.job)
            _, sequence = known = await self._locks.load(scope)
            if known[0] != state:
                continue
            if state.holder is None or (
                state.holder != me.execution_id and await self.is_over(wanted.job, state.holder)
            ):
                if state.waiting:
                    continue  # it has become free in this moment, and is for those who wait already
                return await self._acquire(wanted.job, me, ttl=lock.ttl(wanted), known=(state, sequence))
            if state.holder == me.execution_id or state.has_waiter(me.execution_id):
                return state
            active = subjects.execution(wanted.job, state.holder)
            policy = lock.effective_policy(state, wanted, (await self._executions.load(active))[0].requested)
            if policy == "cancel_previous":
                reason = f"superseded by {me.execution_id}"
                await self._executions.decide(active, partial(execution.cancel, reason=reason))
            elif policy == "enqueue":
                await self._queue(wanted.job, me, known=(state, sequence))
            else:
                return state
        raise SequenceConflict(f"{wanted.job}: its lock changes hands all the time")

    async def hand_on(self, job: str) -> Lock:
        """Give a free lock to whoever waits for it, the earliest first; the lock as it is then."""
        for _ in range(TRIES):
            state, sequence = await self._locks.load(subjects.lock(job))
            if not state.waiting or state.holder is None or not await self.is_over(job, state.holder):
                return state
            first = state.waiting[0]
            asked, _ = await self._planned(job, first.execution_id)
            ttl = lock.ttl(asked.requested) if asked.requested else lock.GRACE_S
            held = await self._acquire(job, first, ttl=ttl, known=(state, sequence))
            await self.admit(job, held)
        raise SequenceConflict(f"{job}: its lock changes hands all the time")

    async def _acquire(self, job: str, wanted: Waiter, *, ttl: float, known: tuple[Lock, int]) -> Lock:
        for fact in lock.acquire(known[0], job, wanted, ttl=ttl):
            known = await self._locks.append(subjects.lock(job), fact, behind=known)
        self.projection.held(job, wanted.execution_id, ttl=ttl)
        return known[0]

    async def _queue(self, job: str, wanted: Waiter, *, known: tuple[Lock, int]) -> None:
        for fact in lock.queue(known[0], job, wanted):
            await self._locks.append(subjects.lock(job), fact, behind=known)
            if len(fact.waiting) > MANY:
                _log.warning("many wait", action="queue-grows", job=job, waiting=len(fact.waiting))

    async def admit(self, job: str, held: Lock) -> None:
        """Let the holder of a lock run, unless it does, or is over."""
        if held.holder is None:
            return
        scope = subjects.execution(job, held.holder)
        known = await self._planned(job, held.holder)
        for fact in execution.admit(known[0], fence=held.fence):
            _, stored = await self._executions.append(scope, fact, behind=known)
            await self._public_events.announce(fact, sequence=stored)
        if known[0].status is not Status.PLANNED:  # somebody else did, and may have died before saying so
            await self.announce_again(job, held.holder)

    async def see_through(self, end: Terminal, held: Lock) -> None:
        """Have it said that the next one ran which the lock went to, though whoever let it run died, and it is over too.

        Those after it are for its own end to see to.
        """
        after, is_behind = end.fence, True
        if after is None:  # cancelled before it was admitted: it may have had the lock all the same
            after, is_behind = await self._planned_at(end), False
        while acquired := await self._log.read(subjects.acquisitions(end.job), after=after, limit=FEW):
            for recorded in acquired:
                after, fact = recorded.sequence, recorded.message
                if not isinstance(fact, Acquired) or (is_behind and await self._is_seen_through(fact)):
                    return
                is_behind = is_behind or fact.execution_id == end.execution_id
        if after < held.fence:
            raise StaleRead.of(subjects.lock(end.job))

    async def _is_seen_through(self, acquired: Acquired) -> bool:
        """Whether there is nothing to be done for those behind it: it has the lock still, or ran, as it is said now."""
        job, execution_id = acquired.job, acquired.execution_id
        if not await self.is_over(job, execution_id):
            return True
        state, _ = await self._executions.load(subjects.execution(job, execution_id))
        is_admitted = isinstance(state.requested, Admitted)
        if is_admitted or state.status is Status.SKIPPED:
            await self.announce_again(job, execution_id)
        return is_admitted

    async def _planned_at(self, end: Terminal) -> int:
        state, sequence = await self._planned(end.job, end.execution_id)
        if not isinstance(state.requested, Planned):
            return sequence
        planned = await self._log.last(subjects.subject_of(state.requested))
        if planned is None:
            raise StaleRead.of(subjects.lock(end.job))
        return planned.sequence

    async def announce_again(self, job: str, execution_id: str) -> None:
        """Whether an execution runs was decided before; make sure that it was also said."""
        for subject in subjects.admissions(job, execution_id):
            if (decided := await self._log.last(subject)) is not None:
                await self._public_events.announce(decided.message, sequence=decided.sequence)
                return
        state, _ = await self._executions.load(subjects.execution(job, execution_id))
        if state.status is Status.SKIPPED or isinstance(state.requested, Admitted):
            raise StaleRead.of(subjects.execution(job, execution_id))

    async def _planned(self, job: str, execution_id: str) -> tuple[Execution, int]:
        """An execution that the lock knows of; what it was planned as may not have reached every replica."""
        scope = subjects.execution(job, execution_id)
        known = await self._executions.load(scope)
        if known[0].status is Status.UNKNOWN and not await self._executions.is_newest(scope, known[1]):
            known = await self._executions.load(scope)
            if known[0].status is Status.UNKNOWN and not await self._executions.is_newest(scope, known[1]):
                raise StaleRead.of(scope)
        return known

    async def is_over(self, job: str, execution_id: str) -> bool:
        """Whether an execution is over, by the newest that is known of it.

        Raises:
            StaleRead: a replica that lags was read; ask again.
        """
        scope = subjects.execution(job, execution_id)
        state, sequence = await self._executions.load(scope)
        if not state.is_over and not await self._executions.is_newest(scope, sequence):
            state, sequence = await self._executions.load(scope)
            if not state.is_over and not await self._executions.is_newest(scope, sequence):
                raise StaleRead.of(scope)
        # What the log does not know any more was archived, and only what is over is archived.
        return state.is_over or state.status is Status.UNKNOWN
