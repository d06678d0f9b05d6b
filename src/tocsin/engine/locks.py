"""Decisions on locks that the planner and the lock keeper share.

The lock's event is stored first, the execution's second. After a crash between the two, the execution already holds the
lock, and the redelivery of its input admits it. No guard covers both scopes, so a process may store an `acquired` event too
many for an execution that was cancelled meanwhile. The event does no harm: the execution's own guard refuses to admit it,
and an execution that is over holds no lock.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from .. import subjects
from ..domain import lock
from ..domain.events import Admitted, Planned, Requested, Skipped
from ..domain.execution import Status
from ..domain.execution.state import request_fields
from ..domain.execution_plan import First, definition_to_identify, registered, traced
from ..domain.lock import Lock, Waiter
from ..domain.trace_context import Sampling
from ..subjects import Bucket, Stream
from ..telemetry import trace_ids
from .kinds import REGISTERED_AT, execution_state
from .lock_projection import Held
from .public_events import announce_decision, answer_to_queued, plan, triggered_event
from .step import DONE, Events, Reading, Ref, Scope, Sources, States, Step, again, done

LOCK: Final = Scope("lock", lock.initial, lock.evolve)


async def _archived(sources: Sources, streams: Sequence[Stream]) -> Mapping[Stream, int]:
    archived: dict[Stream, int] = {}
    for stream in streams:
        entry = await sources.projections.get(Bucket.CURSORS, subjects.cursor(stream))
        archived[stream] = 0 if entry is None else int(entry[0])
    return archived


ARCHIVED: Final = Reading("archive's cursor", _archived)
"""The sequence of a stream up to which finished executions may be archived."""


def lock_state(job: str, shard: str | None = None) -> Ref[Lock]:
    """Refer to the lock of a job, or of one of its shards."""
    return LOCK(subjects.lock(job, shard))


def states_of_beginning(job: str, execution_id: str, shard: str | None = None) -> tuple[Ref[Any], ...]:
    """Refer to the states on which the beginning of an execution with a lock depends."""
    return execution_state(job, execution_id), lock_state(job, shard), triggered_event(job)


def is_over(job: str, execution_id: str, fence: int, states: States) -> tuple[bool, tuple[Ref[Any], ...]]:
    """Return whether a lock's holder is over, and the scopes that prove it.

    `fence` is the sequence at which it acquired the lock. An execution without events is archived if that sequence lies
    before the archive's cursor. Otherwise it is about to be admitted by the process that acquired the lock for it.
    """
    ref = execution_state(job, execution_id)
    state = states(ref)
    if state.is_over:
        return True, ()
    return state.status is Status.UNKNOWN and fence <= states(ARCHIVED(Stream.LOG)), (ref,)


def acquire(
    job: str,
    shard: str | None,
    waiter: Waiter,
    ttl: float,
    states: States,
    *,
    rests_on: tuple[Ref[Any], ...] = (),
) -> Step:
    """Acquire a free lock for an execution, and decide again."""
    ref = lock_state(job, shard)
    events = lock.acquire(states(ref), job, waiter, ttl=ttl, shard=shard)
    # The bucket has a key for each job, and so shows no locks of shards.
    held = () if shard is not None else (Held(job, waiter.execution_id, ttl),)
    return again(Events(ref, tuple(events)), rests_on=rests_on, signals=held)


def hand_on(
    job: str, shard: str | None, job_lock: Lock, states: States, rests_on: tuple[Ref[object], ...]
) -> Step | None:
    """Hand a free lock to the earliest waiting execution; None: no execution waits."""
    if (first := job_lock.waiting.first) is None:
        return None
    ref = execution_state(job, first.execution_id)
    request = states(ref).requested
    ttl = lock.ttl(request) if request else lock.GRACE_S
    return acquire(job, shard, first, ttl, states, rests_on=rests_on if request else (*rests_on, ref))


def identified(first: First, states: States) -> First:
    """Return the first event of an execution with its `job_uuid`, if a step runs SQL."""
    sequence = definition_to_identify(first)
    return registered(first, states(REGISTERED_AT((first.job, sequence)))) if sequence else first


def taken_fence(job: str, execution_id: str, states: States) -> int | None:
    """Return the fence of an execution that has its lock and no event yet.

    None: it does not hold the lock. An earlier delivery of its trigger took the lock after the checks of an earlier definition. Another
    process may have handled the earlier delivery, so the lock is read again, once for all decisions of a wave.
    """
    if not states.is_repeated or states.guess(execution_state(job, execution_id)).status is not Status.UNKNOWN:
        return None
    ref = lock_state(job, None)
    job_lock = states(ref) if states.has_changed(ref) else states.fresh(ref)
    return job_lock.fence if job_lock.holder == execution_id else None


def fence_of(request: Requested, job_lock: Lock) -> int | None:
    """Return the fence of a lock if an execution holds it."""
    return job_lock.fence if job_lock.holder == request.execution_id else None


def begin(
    first: Planned | Admitted | Skipped, states: States, now: datetime, *, key: bytes, sampling: Sampling | None = None
) -> Step:
    """Store the first event of an execution.

    If the execution requires its job's lock, acquire the lock first. `key` signs the task that an admission holds. `sampling` decides
    on the export of its trace; None: no trace is made.
    """
    first = traced(identified(first, states), sampling)
    trace_ids.note(first)  # its lock may be acquired before it is stored
    if isinstance(first, Planned):
        return _begin_with_lock(first, states, now, key)
    return plan(first, states, now, key=key)


def _begin_with_lock(first: Planned, states: States, now: datetime, key: bytes) -> Step:
    """Admit an execution whose lock is free; otherwise store that it is planned.

    The lock keeper then decides. This process does not hear of the ends of executions, so it reads again whether the lock
    is held, once for all decisions of a wave.
    """
    job, shard = first.job, first.plan.shard
    ref, lock_ref = execution_state(job, first.execution_id), lock_state(job, shard)
    states.expect(lambda: states_of_beginning(job, first.execution_id, shard))
    held = states(lock_ref)
    if held.holder not in {None, first.execution_id}:
        held = states.fresh(lock_ref, execution_state(job, held.holder or ""))
    state = states(ref)  # an execution that was decided long ago must not acquire the lock
    if state.is_held:
        answer = answer_to_queued(state.request, None, states, now)
        return DONE if answer is None else done(answer)
    if state.status is not Status.UNKNOWN:
        return announce_decision(state.decided, states, now)
    if lock.waits_before_lock(first):
        planned = Events(ref, (first,))
        return done(planned) if first.trigger_id is None else again(planned)
    if held.holder == first.execution_id:
        admitted = Admitted(**request_fields(first), fence=held.fence)
        return plan(admitted, states, now, key=key)
    if held.waiting.first is None:
        is_free, rests_on = (True, ()) if held.holder is None else is_over(job, held.holder, held.fence, states)
        if is_free:
            return acquire(job, shard, lock.waiting(first), lock.ttl(first), states, rests_on=rests_on)
    return done(Events(ref, (first,)))
