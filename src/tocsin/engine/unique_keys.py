"""Decisions on unique keys, for the planner (ojs-unique-jobs).

The guard of the key's scope decides which of several jobs takes the key. Its event is stored first, then the executions that it
replaces are cancelled, and then the execution begins. After a crash between these, the redelivery of the input continues. No guard
covers two scopes, so a job that lost its key meanwhile is ended in its own scope, whose guard lets it begin or end.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from .. import subjects
from ..domain import execution, uniqueness
from ..domain.events import OPEN_STATES, Admitted, KeyHolder, Skipped, UniqueRule
from ..domain.execution import Execution, Status
from ..domain.execution_plan import traced
from ..domain.trace_context import Sampling
from ..domain.uniqueness import Known, UniqueKey, job_state
from ..subjects import Stream
from .daily_quotas import DailyQuotas
from .kinds import dead_letter_state, execution_state
from .locks import ARCHIVED, begin
from .step import Events, Ref, Scope, States, Step, again, done

UNIQUE_KEY: Final = Scope("unique key", uniqueness.initial, uniqueness.evolve)
ABANDONED_AFTER: Final = timedelta(seconds=60)
"""The time after which a job that took its key and did not begin blocks no later job.

Its input became a dead letter, or no planner has run since.
"""


def unique_key(job: str, key: str) -> Ref[UniqueKey]:
    """Refer to a unique key."""
    return UNIQUE_KEY(subjects.unique_key(job, key))


def begin_unique(
    first: Admitted,
    rule: UniqueRule,
    enqueued_at: datetime,
    states: States,
    now: datetime,
    *,
    key: bytes,
    quotas: DailyQuotas,
    sampling: Sampling | None = None,
) -> Step:
    """Begin an execution once it has its unique key, or skip it as a duplicate."""
    ref, key_ref = execution_state(first.job, first.execution_id), unique_key(first.job, rule.key)
    states.expect(lambda: (ref, key_ref))
    if states(ref).status is not Status.UNKNOWN:
        return begin(first, states, now, key=key, sampling=sampling)
    own = states(key_ref).holder(first.execution_id)
    if own is None:
        return _take(first, rule, enqueued_at, states, sampling)
    for execution_id in own.replaces:
        is_last = execution_id == own.replaces[-1]
        if (step := _end(first, execution_id, states(key_ref), states, is_last=is_last)) is not None:
            return step
    counted = quotas.count(_starting_at(first, own.start_at), states, now)
    return counted if isinstance(counted, Step) else begin(counted, states, now, key=key, sampling=sampling)


def _take(first: Admitted, rule: UniqueRule, enqueued_at: datetime, states: States, sampling: Sampling | None) -> Step:
    """Take the key; or skip the execution, if another job has the key."""
    job, key_ref = first.job, unique_key(first.job, rule.key)
    known: list[Known] = []
    rests_on: list[Ref[Any]] = [key_ref]
    held = states(key_ref).holders
    # Every open execution is ended then, under the guard of its scope. So a state that is no longer the newest does no harm here.
    ends_all = rule.on_conflict == "replace" and {*OPEN_STATES} <= {*rule.states}
    states.expect(lambda: (execution_state(job, holder.execution_id) for holder in held))
    for holder in held:
        state, refs = _current(job, holder.execution_id, states)
        rests_on += refs[:-1] if ends_all and not state.is_over else refs
        if state.status is Status.UNKNOWN:
            if holder.taken <= states(ARCHIVED(Stream.LOG)):
                if ends_all:
                    rests_on.append(refs[-1])  # it is not ended: this step relies on its absence
                continue
            if enqueued_at - holder.enqueued_at >= ABANDONED_AFTER:
                return again(_skipped(first, holder))
            known.append(Known(holder, "available" if holder.start_at is None else "scheduled"))
        elif state.status is not Status.SKIPPED:
            known.append(Known(holder, job_state(state, next(iter(state.steps.values())))))
    found = uniqueness.duplicates(rule, enqueued_at, known)
    if found and rule.on_conflict in {"reject", "ignore"}:
        return _skip(first, found[-1].holder, tuple(rests_on), sampling)
    wanted = KeyHolder(execution_id=first.execution_id, taken=0, enqueued_at=enqueued_at, start_at=first.plan.start_at)
    taken = uniqueness.take(job, rule, wanted, known=known, replaced=found)
    return again(Events(key_ref, (taken,)), rests_on=tuple(rests_on[1:]))


def _skip(first: Admitted, holder: KeyHolder, rests_on: tuple[Ref[Any], ...], sampling: Sampling | None) -> Step:
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
    return done(Events(ref, (traced(skipped, sampling),)), rests_on=rests_on)


def _skipped(first: Admitted, holder: KeyHolder) -> Events:
    """Skip an execution that has not begun, because another takes its key."""
    skipped = Skipped(
        job=first.job,
        execution_id=holder.execution_id,
        reason="duplicate",
        scheduled_time=holder.enqueued_at,
        trigger="api",
        definition=0,
        active_execution_id=first.execution_id,
    )
    return Events(execution_state(first.job, holder.execution_id), (skipped,))


def _end(first: Admitted, execution_id: str, held: UniqueKey, states: States, *, is_last: bool) -> Step | None:
    """End an execution that `first` replaces; None: it is over.

    After the last, the next job that replaces others may take the key: `first` begins before that ends it. But if
    `first` took the key long ago, the next would take it for archived.
    """
    state, refs = _current(first.job, execution_id, states)
    own = held.holder(first.execution_id)
    lets_pass = is_last and own is not None and own.taken > states(ARCHIVED(Stream.LOG))
    if state.status is Status.UNKNOWN:
        holder = held.holder(execution_id)
        if holder is None or holder.taken <= states(ARCHIVED(Stream.LOG)):
            return None
        return again(_skipped(first, holder), lets_pass=lets_pass)
    events = execution.cancel(state, reason=f"replaced by {first.execution_id}", by=first.by)
    return again(Events(refs[-1], tuple(events)), lets_pass=lets_pass) if events else None


def _current(job: str, execution_id: str, states: States) -> tuple[Execution, tuple[Ref[Any], ...]]:
    """Return the newest execution of a job: the last replay of its dead letter.

    Also return the scopes that prove it, last that of the execution. The end of an execution needs no proof.
    """
    ref = execution_state(job, execution_id)
    state = states(ref)
    letters: tuple[Ref[Any], ...] = ()
    while state.status is Status.FAILED:
        letter = dead_letter_state(job, execution_id)
        letters = (*letters, letter)
        replays = states(letter).replays
        if not replays:
            break
        execution_id = replays[-1].execution_id
        replayed = execution_state(job, execution_id)
        if states(replayed).status is Status.UNKNOWN:
            break
        ref, state = replayed, states(replayed)
    return state, letters if state.is_over else (*letters, ref)


def _starting_at(first: Admitted, start_at: datetime | None) -> Admitted:
    """Return the beginning with the time at which the replaced job was to start."""
    if start_at == first.plan.start_at:
        return first
    plan = first.plan.changed(start_at=start_at)
    return first.changed(plan=plan, scheduled_time=start_at or first.scheduled_time)
