"""Lock keeper: admits one execution of a job at a time (hip-62; CRON-18).

The planner admits an execution whose lock is free. The lock keeper decides on the executions that found it held, and hands
the lock of an ended execution to the next in line (hip-62, Distributed Locking; ojs-cron §6). The KV bucket `locks` only
shows the locks (`lock_projection`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeGuard

from .. import subjects, telemetry
from ..domain import execution, lock
from ..domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    DependenciesSettled,
    Dispatched,
    Failed,
    Message,
    Planned,
    Queued,
    QuorumSettled,
    Recorded,
    Recovered,
    Requested,
    Skipped,
    Terminal,
)
from ..domain.execution import Execution, Status
from ..domain.lock import Lock
from ..engine.kinds import FACTS, execution_state
from ..engine.lock_projection import LockProjection, LockRenewal, Released
from ..engine.locks import acquire, fence_of, hand_on, is_over, lock_state, states_of_beginning
from ..engine.public_events import ANNOUNCED, announce_decision, answer_to_queued
from ..engine.stage import SHARED_READ_AHEAD, Access, Stage, Subscription
from ..engine.step import DONE, Events, Reading, Ref, Sources, States, Step, again, done
from ..ports import StaleRead
from ..subjects import Bucket, Stream

LONG_QUEUE: Final = 2
"""A warning is logged when more executions wait for a lock (CRON-S04), and each time that twice as many do."""
ACQUISITIONS_PER_READ: Final = 10
"""Acquisitions that are read at a time; in most cases the first decides."""

_log = telemetry.get_logger("tocsin.stages")


async def _acquisitions(
    sources: Sources, keys: Sequence[tuple[str, str | None, int]]
) -> dict[tuple[str, str | None, int], Sequence[Recorded[Message]]]:
    return {
        (job, shard, after): await sources.log.read(
            subjects.acquisitions(job, shard), after=after, limit=ACQUISITIONS_PER_READ
        )
        for job, shard, after in keys
    }


ACQUISITIONS: Final = Reading("acquisitions", _acquisitions)
"""The next acquisitions of a lock after a sequence: the key is (job, shard, sequence)."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Signal: so many executions wait for the lock of a job."""

    job: str
    count: int


class LockKeeper:
    """Decides which execution has its job's lock."""

    def __init__(self, projection: LockProjection, key: bytes, renewal: LockRenewal | None = None) -> None:
        """Sign the first task of an execution with `key`.

        `renewal`: None renews no entry in the bucket.
        """
        self._projection = projection
        self._renewal = renewal
        self._key = key

    async def show_locks(self) -> None:
        """Keep the KV bucket `locks` up to date."""
        await self._projection.run()

    async def renew_locks(self) -> None:
        """Renew the entries in the KV bucket `locks` whose holders live."""
        if self._renewal is not None:
            await self._renewal.run()

    def take_signal(self, signal: object) -> None:
        """Show a lock that was acquired or released; warn of a long queue."""
        if not isinstance(signal, Waiting):
            self._projection.take(signal)
        elif signal.count > LONG_QUEUE and (signal.count - 1).bit_count() == 1:
            _log.warning("many executions wait for a lock", action="queue-grows", job=signal.job, waiting=signal.count)

    # --- planned -----------------------------------------------------------------------------------------------------

    def on_planned(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Decide whether a planned execution may run now.

        Do it again for a recovered execution, and for one that waits for other jobs or for acknowledgements no longer.
        """
        message = recorded.message
        if not isinstance(message, Planned | DependenciesSettled | QuorumSettled | Recovered):
            return DONE
        ref = execution_state(message.job, message.execution_id)
        shard = message.plan.shard if isinstance(message, Planned) else None
        states.expect(lambda: states_of_beginning(message.job, message.execution_id, shard))
        state = states(ref)
        if states.at(ref) < recorded.sequence:
            raise StaleRead.of(ref.key)
        if state.status is not Status.PLANNED:
            has_waited = isinstance(message, DependenciesSettled | QuorumSettled)
            step = self._leave_lock(state, states, now) if has_waited else None
            return step or announce_decision(state.decided, states, now)
        if not isinstance(state.requested, Planned) or state.is_held:
            return DONE
        if (reason := execution.skip_reason(state)) is not None:
            return again(Events(ref, tuple(execution.skip(state, active=None, reason=reason))))
        if state.request.plan.overlap_policy == "allow":
            job_lock = states.up_to(lock_state(message.job, state.request.plan.shard), recorded.sequence)
            return again(_admission(ref, fence_of(state.request, job_lock), states, self._key))
        return self._request(state.request, states, now)

    def _request(self, request: Requested, states: States, now: datetime) -> Step:
        """Request a job's lock for a planned execution."""
        job, ref = request.job, lock_state(request.job, request.plan.shard)
        job_lock = states(ref)
        if job_lock.holder in {None, request.execution_id}:
            return self._take(request, job_lock, states)
        is_free, rests_on = is_over(job, job_lock.holder or "", job_lock.fence, states)
        if is_free:
            return hand_on(job, request.plan.shard, job_lock, states, rests_on) or self._take(
                request, job_lock, states, rests_on
            )
        if step := _finish_admission(job, job_lock, states, now, self._key):
            return step
        if job_lock.has_waiter(request.execution_id):
            if answer := answer_to_queued(request, job_lock.holder or "", states, now):
                return done(answer, rests_on=(ref, *rests_on))
            return done(rests_on=(ref, *rests_on))
        return self._overlap(request, job_lock, states, rests_on)

    def _overlap(self, request: Requested, job_lock: Lock, states: States, rests_on: tuple[Ref[object], ...]) -> Step:
        """Apply the overlap policy to an execution whose lock is held (ojs-cron §6)."""
        job, holder = request.job, job_lock.holder or ""
        me, active = execution_state(job, request.execution_id), execution_state(job, holder)
        match lock.overlap(job_lock, request, states(active).requested):
            case "cancel_previous":
                cancellation = execution.cancel(states(active), reason=f"{lock.SUPERSEDED_BY}{request.execution_id}")
                if not cancellation:  # it acquired the lock just now, and is about to be admitted
                    raise StaleRead.of(active.key)
                return again(Events(active, tuple(cancellation)))
            case "queue":
                entry = Events(
                    lock_state(job, request.plan.shard),
                    tuple(lock.queue(job_lock, job, lock.waiting(request), shard=request.plan.shard)),
                )
                # The next decision sees whether the holder ended before this was stored: no later event would wake it.
                return again(entry, rests_on=rests_on, signals=(Waiting(job, len(job_lock.waiting) + 1),))
            case reason:
                skips = execution.skip(states(me), active=holder, reason=reason)
                return again(Events(me, tuple(skips)), rests_on=rests_on)

    def _take(self, request: Requested, job_lock: Lock, states: States, rests_on: tuple[Ref[object], ...] = ()) -> Step:
        """Acquire a free lock for an execution, or admit its holder."""
        job, ref = request.job, execution_state(request.job, request.execution_id)
        if job_lock.holder == request.execution_id:
            return again(_admission(ref, job_lock.fence, states, self._key))
        return acquire(job, request.plan.shard, lock.waiting(request), lock.ttl(request), states, rests_on=rests_on)

    def _leave_lock(self, state: Execution, states: States, now: datetime) -> Step | None:
        """Hand on the lock of an execution skipped after its waits; None: nothing waits."""
        request, skipped = state.requested, state.decided
        if state.status is not Status.SKIPPED or request is None or skipped is None:
            return None
        job, shard = request.job, request.plan.shard
        job_lock = states.up_to(lock_state(job, shard), skipped.sequence)
        if job_lock.holder == request.execution_id:
            return hand_on(job, shard, job_lock, states, ())
        return _finish_admission(job, job_lock, states, now, self._key)

    # --- ended -------------------------------------------------------------------------------------------------------

    def on_end(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Hand the lock of an ended execution to the next; the release has no event."""
        end = recorded.message
        if not _may_hold(end):
            return DONE
        ref = lock_state(end.job, end.shard)
        # An execution that queues after this end reads the end and acquires the lock itself.
        job_lock = states.up_to(ref, recorded.sequence)
        rests_on: tuple[Ref[Any], ...] = ()
        if job_lock.holder is not None and job_lock.waiting.first is not None:
            is_free = job_lock.holder == end.execution_id
            if not is_free:
                is_free, rests_on = is_over(end.job, job_lock.holder, job_lock.fence, states)
            if is_free and (step := hand_on(end.job, end.shard, job_lock, states, rests_on)):
                return step
        if job_lock.holder is not None and job_lock.holder != end.execution_id:
            step, last = _announce_successors(end, job_lock, states, now)
            step = step or _finish_admission(end.job, job_lock, states, now, self._key, is_end=True)
            if step is not None:
                return step
            holder = execution_state(end.job, job_lock.holder)
            unknown = (holder,) if states(holder).status is Status.UNKNOWN else ()
            rests_on = (*rests_on, *last, *unknown)
        released = () if end.shard is not None else (Released(end.job, end.execution_id),)
        return done(rests_on=rests_on, signals=released)


def _finish_admission(
    job: str, job_lock: Lock, states: States, now: datetime, key: bytes, *, is_end: bool = False
) -> Step | None:
    """Complete the admission of the holder of a lock if a process stopped before that.

    None: nothing is left to do. `is_end`: the input is the end of the holder before it. Then the process that admitted the holder may have stopped
    before announcing it.
    """
    if job_lock.holder is None:
        return None
    ref = execution_state(job, job_lock.holder)
    state = states(ref)
    if admission := _admission(ref, job_lock.fence, states, key):
        return again(admission)
    if is_end or states.has_changed(ref):
        step = announce_decision(state.decided, states, now)
        return again(*step.changes) if step.changes else None
    return None


def _admission(ref: Ref[Execution], fence: int | None, states: States, key: bytes) -> Events:
    """Return the admission of an execution; no events: it is admitted or over.

    `fence` is that of its lock; None: it needs none.
    """
    admissions = execution.admit(states(ref), fence=fence)
    return Events(ref, tuple(execution.admit_and_dispatch(event, key=key) for event in admissions))


def _announce_successors(
    end: Terminal, job_lock: Lock, states: States, now: datetime
) -> tuple[Step | None, tuple[Ref[object], ...]]:
    """Announce the executions that acquired the lock after an ended execution.

    Without a step, all are announced. Return also the scopes on which the answer rests.

    The process that admitted a successor may have died before announcing it, and the successor may be over too. The end of
    a successor that was admitted takes care of the executions after it.
    """
    after, has_passed = end.fence, True
    if after is None:  # cancelled before it was admitted, but it may have had the lock
        after, has_passed = _planned_at(end, states), False
    while acquisitions := states(ACQUISITIONS((end.job, end.shard, after))):
        for recorded in acquisitions:
            after, event = recorded.sequence, recorded.message
            if not isinstance(event, Acquired):
                return None, ()
            if has_passed:
                has_ended, rests_on = is_over(end.job, event.execution_id, recorded.sequence, states)
                if not has_ended:
                    return None, rests_on
                state = states(execution_state(end.job, event.execution_id))
                step = announce_decision(state.decided, states, now)
                if step.changes:
                    return again(*step.changes), ()
                if isinstance(state.requested, Admitted):
                    return None, ()
            has_passed = has_passed or event.execution_id == end.execution_id
    if after < job_lock.fence:
        raise StaleRead.of(subjects.lock(end.job, end.shard))
    return None, ()


def _planned_at(end: Terminal, states: States) -> int:
    """Return the sequence at which an ended execution was planned, or else its last sequence."""
    ref = execution_state(end.job, end.execution_id)
    request = states(ref).requested
    if not isinstance(request, Planned):
        return states.at(ref)
    subject = subjects.subject_of(request)
    if not (facts := states(FACTS(subject))):
        raise StaleRead.of(subject)
    return facts[-1].sequence


def _may_hold(end: Message) -> TypeGuard[Terminal]:
    """Return whether an execution that ended may have the lock.

    Without a fencing token it was never admitted; but if it was cancelled or abandoned before, it may have the lock.
    """
    return isinstance(end, Terminal) and (
        end.fence is not None or isinstance(end, Cancelled) or (isinstance(end, Failed) and end.reason == "abandoned")
    )


_PLANNED: Final = (
    subjects.filter_for("execution.planned"),
    subjects.filter_for("execution.dependencies-settled"),
    subjects.filter_for("execution.quorum-settled"),
    subjects.filter_for("execution.recovered"),
)
_ENDS: Final = (
    subjects.LOCKED_COMPLETIONS,
    *(subjects.filter_for(f"execution.{end}") for end in ("failed", "cancelled")),
)

LOCK_KEEPER: Final = Stage(
    name="lock_keeper",
    purpose="lets one execution of a job run at a time",
    consumes="`planned`, `dependencies-settled`, `quorum-settled`, `recovered`, ends of executions",
    decides="`acquired`, `dispatched` or `admitted`, `queued`, `skipped`, or `cancelled`",
    access=Access(
        appends=(Acquired, Queued, Admitted, Dispatched, Skipped, Cancelled, *ANNOUNCED),
        reads=(Stream.LOG, Stream.LEDGER),
        writes=((Bucket.LOCKS, ">"),),
    ),
    start=lambda context: LockKeeper(
        LockProjection(context.log, context.projections, context.clock, calm=context.calm),
        context.report_key,
        LockRenewal(context.log, context.projections, context.clock),
    ),
    subscriptions=(
        Subscription(
            subjects.LOCK_KEEPER,
            Stream.LOG,
            _PLANNED,
            ordering_key=subjects.job_of,
            takes_turns=True,
            decide=LockKeeper.on_planned,
            on_signal=LockKeeper.take_signal,
        ),
        Subscription(
            subjects.LOCK_KEEPER_ENDS,
            Stream.LOG,
            _ENDS,
            low_priority=True,
            takes_turns=True,
            read_ahead=SHARED_READ_AHEAD,
            decide=LockKeeper.on_end,
            on_signal=LockKeeper.take_signal,
        ),
    ),
    loops=(LockKeeper.show_locks, LockKeeper.renew_locks),
)
