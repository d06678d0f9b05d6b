"""Lock keeper: admits one execution of a job at a time (hip-62; CRON-18).

The planner admits an execution whose lock is free. The lock keeper decides on the executions that found it held, and hands
the lock of an ended execution to the next in line (hip-62, Distributed Locking; ojs-cron §6). The KV bucket `locks` only
shows the locks (`displays`).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeGuard

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
from ..engine.kinds import execution_state
from ..engine.locks import acquire, fence_of, hand_on, is_held, lock_state
from ..engine.public_events import ANNOUNCED, announce_decision, answer_to_queued
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Events, Ref, States, Step, again, done
from ..subjects import Bucket, Stream

LONG_QUEUE: Final = 2
"""A warning is logged when more executions wait for a lock (CRON-S04), and each time that twice as many do."""

_log = telemetry.get_logger("tocsin.stages")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Signal: so many executions wait for the lock of a job."""

    job: str
    count: int


class LockKeeper:
    """Decides which execution has its job's lock."""

    def __init__(self, key: bytes) -> None:
        """Sign the first task of an execution with `key`."""
        self._key = key

    def take_signal(self, signal: object) -> None:
        """Warn of a long queue."""
        if isinstance(signal, Waiting) and signal.count > LONG_QUEUE and (signal.count - 1).bit_count() == 1:
            _log.warning("many executions wait for a lock", action="queue-grows", job=signal.job, waiting=signal.count)

    def on_planned(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Decide whether a planned execution may run now.

        Do it again for a recovered execution, and for one that waits for other jobs or for acknowledgements no longer.
        """
        message = recorded.message
        if not isinstance(message, Planned | DependenciesSettled | QuorumSettled | Recovered):
            return DONE
        ref = execution_state(message.job, message.execution_id)
        state = states(ref)
        if state.status is not Status.PLANNED:
            has_waited = isinstance(message, DependenciesSettled | QuorumSettled)
            step = self._leave_lock(state, states, now) if has_waited else None
            return step or announce_decision(state.decided, states, now)
        if not isinstance(state.requested, Planned) or state.is_held:
            return DONE
        if (reason := execution.skip_reason(state)) is not None:
            return again(Events(ref, tuple(execution.skip(state, active=None, reason=reason))))
        if state.request.plan.overlap_policy == "allow":
            job_lock = states(lock_state(message.job, state.request.plan.shard))
            return again(_admission(ref, fence_of(state.request, job_lock), states, self._key))
        return self._request(state.request, states, now)

    def _request(self, request: Requested, states: States, now: datetime) -> Step:
        """Request a job's lock for a planned execution."""
        job, ref = request.job, lock_state(request.job, request.plan.shard)
        job_lock = states(ref)
        if job_lock.holder in {None, request.execution_id}:
            return self._take(request, job_lock, states)
        if not is_held(job, job_lock, states):
            return hand_on(job, request.plan.shard, job_lock, states) or self._take(request, job_lock, states)
        if step := _finish_admission(job, job_lock, states, now, self._key):
            return step
        if job_lock.has_waiter(request.execution_id):
            answer = answer_to_queued(request, job_lock.holder, states, now)
            return DONE if answer is None else done(answer)
        return self._overlap(request, job_lock, states)

    def _overlap(self, request: Requested, job_lock: Lock, states: States) -> Step:
        """Apply the overlap policy to an execution whose lock is held (ojs-cron §6)."""
        job, holder = request.job, job_lock.holder or ""
        me, active = execution_state(job, request.execution_id), execution_state(job, holder)
        match lock.overlap(job_lock, request, states(active).requested):
            case "cancel_previous":
                cancellation = execution.cancel(states(active), reason=f"{lock.SUPERSEDED_BY}{request.execution_id}")
                return again(Events(active, tuple(cancellation)))
            case "queue":
                entry = Events(
                    lock_state(job, request.plan.shard),
                    tuple(lock.queue(job_lock, job, lock.waiting(request), shard=request.plan.shard)),
                )
                return again(entry, signals=(Waiting(job, len(job_lock.waiting) + 1),))
            case reason:
                skips = execution.skip(states(me), active=holder, reason=reason)
                return again(Events(me, tuple(skips)))

    def _take(self, request: Requested, job_lock: Lock, states: States) -> Step:
        """Acquire a free lock for an execution, or admit its holder."""
        job, ref = request.job, execution_state(request.job, request.execution_id)
        if job_lock.holder == request.execution_id:
            return again(_admission(ref, job_lock.fence, states, self._key))
        return acquire(job, request.plan.shard, lock.waiting(request), lock.ttl(request), states)

    def _leave_lock(self, state: Execution, states: States, now: datetime) -> Step | None:
        """Hand on the lock of an execution skipped after its waits; None: nothing waits."""
        request, skipped = state.requested, state.decided
        if state.status is not Status.SKIPPED or request is None or skipped is None:
            return None
        job, shard = request.job, request.plan.shard
        job_lock = states(lock_state(job, shard))
        if job_lock.holder == request.execution_id:
            return hand_on(job, shard, job_lock, states)
        return _finish_admission(job, job_lock, states, now, self._key)

    def on_end(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Hand the lock of an ended execution to the next; the release has no event."""
        end = recorded.message
        if not _may_hold(end):
            return DONE
        job_lock = states(lock_state(end.job, end.shard))
        if job_lock.waiting.first is not None and not is_held(end.job, job_lock, states):
            step = hand_on(end.job, end.shard, job_lock, states)
        else:
            step = _finish_admission(end.job, job_lock, states, now, self._key)
        return step or DONE


def _finish_admission(job: str, job_lock: Lock, states: States, now: datetime, key: bytes) -> Step | None:
    """Admit and announce an execution that this decision gave the lock.

    None: it gave the lock to no execution.
    """
    if job_lock.holder is None:
        return None
    ref = execution_state(job, job_lock.holder)
    state = states(ref)
    if admission := _admission(ref, job_lock.fence, states, key):
        return again(admission)
    if states.has_changed(ref):
        step = announce_decision(state.decided, states, now)
        return again(*step.changes) if step.changes else None
    return None


def _admission(ref: Ref[Execution], fence: int | None, states: States, key: bytes) -> Events:
    """Return the admission of an execution; no events: it is admitted or over.

    `fence` is that of its lock; None: it needs none.
    """
    admissions = execution.admit(states(ref), fence=fence)
    return Events(ref, tuple(execution.admit_and_dispatch(event, key=key) for event in admissions))


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
        writes=((Bucket.LOCKS, ">"),),
    ),
    start=lambda context: LockKeeper(context.report_key),
    subscriptions=(
        Subscription(
            subjects.LOCK_KEEPER,
            Stream.LOG,
            _PLANNED,
            decide=LockKeeper.on_planned,
            on_signal=LockKeeper.take_signal,
        ),
        Subscription(
            subjects.LOCK_KEEPER_ENDS,
            Stream.LOG,
            _ENDS,
            decide=LockKeeper.on_end,
            on_signal=LockKeeper.take_signal,
        ),
    ),
)
