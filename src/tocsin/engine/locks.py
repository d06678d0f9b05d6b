"""Decisions on locks that the planner and the lock keeper share.

A decision stores the lock's event first, and the execution's second. The release of a lock has no event: an execution that is over
holds no lock.
"""

from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from .. import subjects
from ..domain import lock
from ..domain.events import Admitted, Planned, Requested, Skipped
from ..domain.execution import Status
from ..domain.execution.state import request_fields
from ..domain.execution_plan import First, definition_to_identify, registered, traced
from ..domain.lock import Lock, Waiter
from ..domain.trace_context import Sampling
from ..telemetry import trace_ids
from .kinds import REGISTERED, execution_state
from .public_events import announce_decision, answer_to_queued, plan
from .step import DONE, Events, Ref, Rest, Scope, States, Step, again, done

LOCK: Final = Scope("lock", lock.initial, lock.evolve)


def lock_state(job: str, shard: str | None = None) -> Ref[Lock]:
    """Refer to the lock of a job, or of one of its shards."""
    return LOCK(subjects.lock(job, shard))


def is_held(job: str, job_lock: Lock, states: States) -> bool:
    """Return whether an execution that is not over holds a lock."""
    return job_lock.holder is not None and not states(execution_state(job, job_lock.holder)).is_over


def acquire(job: str, shard: str | None, waiter: Waiter, ttl: float, states: States, rest: Rest | None = None) -> Step:
    """Acquire a free lock for an execution, and decide again, or the rest."""
    ref = lock_state(job, shard)
    events = lock.acquire(states(ref), job, waiter, ttl=ttl, shard=shard)
    return again(Events(ref, tuple(events)), rest=rest)


def hand_on(job: str, shard: str | None, job_lock: Lock, states: States) -> Step | None:
    """Hand a free lock to the earliest waiting execution; None: no execution waits."""
    if (first := job_lock.waiting.first) is None:
        return None
    request = states(execution_state(job, first.execution_id)).requested
    return acquire(job, shard, first, lock.ttl(request) if request else lock.GRACE_S, states)


def identified(first: First, states: States) -> First:
    """Return the first event of an execution with its `job_uuid`, if a step runs SQL."""
    sequence = definition_to_identify(first)
    return registered(first, states(REGISTERED((first.job, sequence)))[0]) if sequence else first


def fence_of(request: Requested, job_lock: Lock) -> int | None:
    """Return the fence of a lock if an execution holds it."""
    return job_lock.fence if job_lock.holder == request.execution_id else None


class Beginning(NamedTuple):
    """The circumstances in which executions begin."""

    states: States
    now: datetime
    key: bytes
    """The installation's, which signs the task that an admission holds."""
    sampling: Sampling | None
    """Decides on the export of traces; None: no trace is made."""


def begin(first: Planned | Admitted | Skipped, at: Beginning) -> Step:
    """Store the first event of an execution.

    If the execution requires its job's lock, acquire the lock first.
    """
    first = traced(identified(first, at.states), at.sampling)
    trace_ids.note(first)  # its lock may be acquired before it is stored
    if isinstance(first, Planned):
        return _begin_with_lock(first, at.states, at.now, at.key)
    return plan(first, at.states, at.now, key=at.key)


def _begin_with_lock(first: Planned, states: States, now: datetime, key: bytes) -> Step:
    """Admit an execution whose lock is free; otherwise store that it is planned.

    The lock keeper then decides.
    """
    job, shard = first.job, first.plan.shard
    ref, lock_ref = execution_state(job, first.execution_id), lock_state(job, shard)
    held, state = states(lock_ref), states(ref)
    if state.is_held:
        answer = answer_to_queued(state.request, None, states, now)
        return DONE if answer is None else done(answer)
    if state.status is not Status.UNKNOWN:
        return announce_decision(state.decided, states, now)
    if lock.waits_before_lock(first):
        planned = Events(ref, (first,))
        return done(planned) if first.trigger_id is None else again(planned)
    if held.holder == first.execution_id:
        return _admit_holder(first, key, states, now)
    if held.waiting.first is None and not is_held(job, held, states):
        rest = partial(_admit_holder, first, key)
        return acquire(job, shard, lock.waiting(first), lock.ttl(first), states, rest)
    return done(Events(ref, (first,)))


def _admit_holder(first: Planned, key: bytes, states: States, now: datetime) -> Step:
    """Admit an execution that has its job's lock."""
    fence = states(lock_state(first.job, first.plan.shard)).fence
    return plan(Admitted(**request_fields(first), fence=fence), states, now, key=key)
