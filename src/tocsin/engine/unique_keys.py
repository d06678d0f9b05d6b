"""Decisions on unique keys, for the planner (ojs-unique-jobs).

A decision stores that a job takes the key, then ends the executions that it replaces, and then begins the execution.
"""

from datetime import datetime
from typing import Final

from .. import subjects
from ..domain import execution, uniqueness
from ..domain.events import Admitted, KeyHolder, Skipped, UniqueRule
from ..domain.execution import Execution, Status
from ..domain.execution_plan import traced
from ..domain.trace_context import Sampling
from ..domain.uniqueness import Known, UniqueKey, job_state
from .kinds import dead_letter_state, execution_state
from .locks import Beginning, begin
from .step import Events, Ref, Scope, States, Step, again, done

UNIQUE_KEY: Final = Scope("unique key", uniqueness.initial, uniqueness.evolve)


def unique_key(job: str, key: str) -> Ref[UniqueKey]:
    """Refer to a unique key."""
    return UNIQUE_KEY(subjects.unique_key(job, key))


def begin_unique(first: Admitted, rule: UniqueRule, enqueued_at: datetime, at: Beginning) -> Step:
    """Begin an execution once it has its unique key, or skip it as a duplicate."""
    key_ref, states = unique_key(first.job, rule.key), at.states
    if states(execution_state(first.job, first.execution_id)).status is not Status.UNKNOWN:
        return begin(first, at)
    own = states(key_ref).holder(first.execution_id)
    if own is None:
        return _take(first, rule, enqueued_at, states, at.sampling)
    for execution_id in own.replaces:
        if (step := _end(first, execution_id, states)) is not None:
            return step
    return begin(_starting_at(first, own.start_at), at)


def _take(first: Admitted, rule: UniqueRule, enqueued_at: datetime, states: States, sampling: Sampling | None) -> Step:
    """Take the key; or skip the execution, if another job has the key."""
    job, key_ref = first.job, unique_key(first.job, rule.key)
    known: list[Known] = []
    for holder in states(key_ref).holders:
        _, state = _current(job, holder.execution_id, states)
        if state.status not in {Status.UNKNOWN, Status.SKIPPED}:
            known.append(Known(holder, job_state(state, next(iter(state.steps.values())))))
    found = uniqueness.duplicates(rule, enqueued_at, known)
    if found and rule.on_conflict in {"reject", "ignore"}:
        return _skip(first, found[-1].holder, sampling)
    wanted = KeyHolder(execution_id=first.execution_id, taken=0, enqueued_at=enqueued_at, start_at=first.plan.start_at)
    taken = uniqueness.take(job, rule, wanted, known=known, replaced=found)
    return again(Events(key_ref, (taken,)))


def _skip(first: Admitted, holder: KeyHolder, sampling: Sampling | None) -> Step:
    skipped = Skipped(
        job=first.job,
        execution_id=first.execution_id,
        reason="duplicate",
        scheduled_time=first.scheduled_time,
        trigger=first.trigger,
        definition=0,
        active_execution_id=holder.execution_id,
        traceparent=first.traceparent,
    )
    ref = execution_state(first.job, first.execution_id)
    return done(Events(ref, (traced(skipped, sampling),)))


def _end(first: Admitted, execution_id: str, states: States) -> Step | None:
    """End an execution that `first` replaces; None: it is over."""
    ref, state = _current(first.job, execution_id, states)
    events = execution.cancel(state, reason=f"replaced by {first.execution_id}", by=first.by)
    return again(Events(ref, tuple(events))) if events else None


def _current(job: str, execution_id: str, states: States) -> tuple[Ref[Execution], Execution]:
    """Return the newest execution of a job: the last replay of its dead letter."""
    ref = execution_state(job, execution_id)
    state = states(ref)
    while state.status is Status.FAILED:
        replays = states(dead_letter_state(job, execution_id)).replays
        if not replays:
            break
        execution_id = replays[-1].execution_id
        replayed = execution_state(job, execution_id)
        if states(replayed).status is Status.UNKNOWN:
            break
        ref, state = replayed, states(replayed)
    return ref, state


def _starting_at(first: Admitted, start_at: datetime | None) -> Admitted:
    """Return the beginning with the time at which the replaced job was to start."""
    if start_at == first.plan.start_at:
        return first
    plan = first.plan.changed(start_at=start_at)
    return first.changed(plan=plan, scheduled_time=start_at or first.scheduled_time)
