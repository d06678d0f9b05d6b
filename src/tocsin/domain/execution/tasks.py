"""Decisions on tasks to dispatch, and the times of tasks to dispatch later."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypedDict

from pydantic import JsonValue

from .. import ids
from ..definition import LEADER_ONLY, value_of
from ..events import Admission, Admitted, Dispatched, Input, PlannedStep, Requested, TaskLimit
from ..ownership import EXECUTOR
from .state import Execution, Status, planned_step
from .steps import Phase, Step

MAX_UPSTREAM_BYTES: Final = 393_216
"""Bytes of upstream results in a task, which is one event: a decision has at most 512 KiB."""


def dispatch(state: Execution, *, key: bytes, last: str | None = None) -> list[Dispatched]:
    """Dispatch the first attempt of every ready step.

    `last` is the step that completed last, if that is known.
    """
    if state.status is not Status.ADMITTED or state.requested is None:
        return []
    return [_task(state, step, 1, key) for step in ready_steps(state, last)]


def ready_steps(state: Execution, last: str | None = None) -> tuple[PlannedStep, ...]:
    """Return the steps of an admitted execution that can be dispatched.

    `last` is the step that completed last, if that is known.
    """
    if isinstance(steps := state.steps, dict):
        return tuple([step for step in state.request.plan.steps if is_ready(steps, step)])
    return steps.ready_steps(last)


def admit_and_dispatch(admitted: Admitted, *, key: bytes) -> Admitted | Dispatched:
    """Return the admission of an execution, with its only task if possible.

    The event is both if the execution has one step and neither a start nor an expiry time. Otherwise it only admits the
    execution, and tasks follow.
    """
    plan = admitted.plan
    if len(plan.steps) != 1 or plan.start_at is not None or plan.expires_at is not None:
        return admitted
    (step,) = plan.steps
    state = Execution(
        Status.ADMITTED, admitted, admitted.fence, {step.name: Step()}, recovered_at=admitted.recovered_at
    )
    admission = Admission(
        plan=plan, by=admitted.by, catch_up=admitted.catch_up, backfill=admitted.backfill, event=admitted.event
    )
    return _task(state, step, 1, key, admission)


def dispatch_retry(state: Execution, name: str, attempt: int, *, key: bytes) -> list[Dispatched]:
    """Dispatch the next attempt of a step whose delay is over."""
    step = state.steps.get(name)
    if state.status is not Status.ADMITTED or step is None or state.requested is None:
        return []
    if step.phase is not Phase.RETRYING or attempt != step.attempt + 1:
        return []
    return [_task(state, planned_step(state, name), attempt, key)]


def dispatch_missing(state: Execution, *, at: datetime, key: bytes) -> list[Dispatched]:
    """Dispatch every task that a recovered execution lacks at `at`.

    These are the tasks of ready steps, of lost attempts, and of retries that are due.
    """
    if state.status is not Status.ADMITTED or state.requested is None:
        return []
    lost = [(n, s.attempt) for n, s in state.steps.items() if s.phase is Phase.LOST]
    overdue = [
        (n, s.attempt + 1)
        for n, s in state.steps.items()
        if s.phase is Phase.RETRYING and s.next_attempt_at is not None and s.next_attempt_at <= at
    ]
    tasks = [_task(state, planned_step(state, name), attempt, key) for name, attempt in (*lost, *overdue)]
    return [*dispatch(state, key=key), *tasks]


def retry_times(state: Execution) -> list[tuple[str, int, datetime]]:
    """Return each step that waits for its next attempt, the attempt and its time (UTC)."""
    if state.status is not Status.ADMITTED or state.requested is None:
        return []
    return [
        (name, step.attempt + 1, step.next_attempt_at)
        for name, step in state.steps.items()
        if step.phase is Phase.RETRYING and step.next_attempt_at is not None
    ]


def is_ready(steps: Mapping[str, Step], step: PlannedStep) -> bool:
    """Return whether a step is not dispatched and all its dependencies are completed."""
    if steps[step.name].phase is not Phase.WAITING:
        return False
    return all(steps[name].phase is Phase.COMPLETED for name in step.depends_on)


def _task(
    state: Execution, step: PlannedStep, attempt: int, key: bytes, admission: Admission | None = None
) -> Dispatched:
    requested = state.request
    content: _Content = {
        "input": {},
        "args": (),
        "builtin": None,
        "job_uuid": None,
        "bind": None,
        "meta": {},
        "tags": (),
    }
    if admission is None:  # otherwise the plan of the admission has the content, and it is not stored twice
        content = {
            "input": requested.plan.input if step.input is None else step.input,
            "args": requested.plan.args if step.args is None else step.args,
            "builtin": step.builtin,
            "job_uuid": requested.plan.job_uuid,
            "bind": step.bind,
            "meta": requested.meta if step.meta is None else {**requested.meta, **step.meta},
            "tags": requested.plan.tags,
        }
    results, deaths = _passed_on(state, step), len(state.deaths.get(step.name, ()))
    return Dispatched(
        job=requested.job,
        execution_id=requested.execution_id,
        step=step.name,
        attempt=attempt,
        max_attempts=step.retry.max_attempts,
        function=step.function,
        queue=step.queue,
        priority=step.priority,
        concurrency=limit_of(requested, step),
        rate=requested.plan.rate,
        resource=EXECUTOR if requested.plan.job_class == LEADER_ONLY else None,
        shard=requested.plan.shard,
        upstream=results,
        upstream_left_out=tuple(name for name in step.depends_on if name not in results),
        timeout=step.timeout,
        scheduled_time=requested.scheduled_time,
        trigger=requested.trigger,
        fence=state.fence,
        token=ids.report_token(key, requested.execution_id, step.name, attempt),
        replay_of=requested.replay_of,
        is_recovery=state.recovered_at is not None,
        original_scheduled_time=requested.scheduled_time if state.recovered_at else None,
        recovery_attempt_time=state.recovered_at,
        traceparent=requested.traceparent,
        hops=requested.hops,
        deaths=deaths,
        runs_alone=deaths > 0 and deaths + 1 >= requested.plan.max_deaths,
        v=1 if admission is None else 2,
        admits=admission,
        **content,
    )


def limit_of(requested: Requested, step: PlannedStep) -> TaskLimit | None:
    """Return the concurrency limit of a task.

    It depends on the plan alone, so that each attempt has the same.
    """
    concurrency = requested.plan.concurrency
    if concurrency is None:
        return None
    if concurrency.key is None:
        return TaskLimit(limit=concurrency.limit)
    input_ = requested.plan.input if step.input is None else step.input
    value = value_of(concurrency.key, {"input": input_, "meta": requested.meta})
    return TaskLimit(limit=concurrency.limit, key=concurrency.key, value=value)


class _Content(TypedDict):
    """The fields of a task that the plan of its execution has too."""

    input: Input
    args: tuple[JsonValue, ...]
    builtin: dict[str, JsonValue] | None
    job_uuid: str | None
    bind: dict[str, JsonValue] | None
    meta: Input
    tags: tuple[str, ...]


def _passed_on(state: Execution, step: PlannedStep) -> dict[str, JsonValue]:
    results: dict[str, JsonValue] = {}
    size = 0
    for name in step.depends_on:
        result = state.steps[name].result
        size += len(json.dumps(result))
        if size <= MAX_UPSTREAM_BYTES:
            results[name] = result
    return results
