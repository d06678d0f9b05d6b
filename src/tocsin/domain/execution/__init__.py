"""The execution: one run of a job, its steps, and its end.

The state is folded from the execution's own scope. Every decision is idempotent: once its outcome is recorded it
returns no events, so that a redelivered message adds nothing (hip-62, Job Dependency Graphs, Retry Policy).

    state, evolve                     the state, and how each event changes it
    adoption                          which completed steps a replay does not run again
    lifecycle                         decisions on the whole: admit, skip, cancel, expire, give up
    tasks, attempts                   decisions on steps, in the order in which a step passes through them
    workflow                          which steps of a workflow are ready, and its outcome
"""

from collections.abc import Collection
from typing import Final

from ..events import Advanced, Cancelled, Plan, PlannedStep
from .attempts import (
    WORKER_LOST,
    ClaimDenied,
    claim,
    claims_on,
    fail,
    go_on,
    may_follow,
    release,
    running_steps,
    succeed,
)
from .lifecycle import (
    admit,
    cancel,
    complete_sole,
    expire,
    gather,
    give_up,
    purge,
    settle,
    skip,
    skip_reason,
    sole_step,
)
from .state import (
    TERMINAL_STATUSES,
    WAITS,
    Execution,
    Status,
    WaitsFor,
    acknowledgements,
    evolve,
    fold,
    identity_fields,
    initial,
    planned_step,
    waiting_steps,
    waits_for,
)
from .steps import Phase, Step
from .tasks import (
    MAX_UPSTREAM_BYTES,
    admit_and_dispatch,
    dispatch,
    dispatch_missing,
    dispatch_retry,
    ready_steps,
    retry_timers,
)

__all__ = [
    "MAX_UPSTREAM_BYTES",
    "TERMINAL_STATUSES",
    "WAITS",
    "WORKER_LOST",
    "ClaimDenied",
    "Execution",
    "Phase",
    "Status",
    "Step",
    "WaitsFor",
    "acknowledgements",
    "admit",
    "admit_and_dispatch",
    "adopt",
    "adoptable_steps",
    "cancel",
    "claim",
    "claims_on",
    "complete_sole",
    "dispatch",
    "dispatch_missing",
    "dispatch_retry",
    "evolve",
    "expire",
    "fail",
    "fold",
    "gather",
    "give_up",
    "go_on",
    "initial",
    "may_follow",
    "planned_step",
    "purge",
    "ready_steps",
    "release",
    "retry_timers",
    "running_steps",
    "settle",
    "skip",
    "skip_reason",
    "sole_step",
    "succeed",
    "waiting_steps",
    "waits_for",
]


# The replay names the failed execution, whose scope has ended and so never changes. Each adopted step is an event of the replay with the result,
# so that nothing of the replay depends on the earlier scope afterwards.

MAX_ADOPTED_AT_ONCE: Final = 64
"""Steps that are adopted in one write; their results may have 64 KiB each."""


def adoptable_steps(before: Execution, plan: Plan) -> frozenset[str]:
    """Return the steps of a plan that an earlier execution completed.

    A step counts if its work and input are the same, and if all steps on which it depends count too.
    """
    earlier = {step.name: step for step in before.request.plan.steps}
    steps = {
        step.name
        for step in plan.steps
        if step.name in earlier
        and before.steps[step.name].phase is Phase.COMPLETED
        and _work(step, plan) == _work(earlier[step.name], before.request.plan)
    }
    while unfounded := {step.name for step in plan.steps if step.name in steps and not _is_founded(step, steps)}:
        steps -= unfounded
    return frozenset(steps)


def adopt(state: Execution, before: Execution) -> list[Advanced | Cancelled]:
    """Adopt some of the steps that `before` completed; return nothing after the last.

    The execution is cancelled if `before` was archived, or if no step remains.
    """
    requested = state.requested
    if state.status is not Status.ADMITTED or requested is None or not requested.failed_only:
        return []
    if any(step.phase not in {Phase.WAITING, Phase.COMPLETED} for step in state.steps.values()):
        return []  # a step was dispatched, so all are adopted
    if before.status is not Status.FAILED:
        gone = f"the results of execution {requested.replay_of} are not in the log any more; replay all steps"
        return [*cancel(state, reason=gone)]
    names = adoptable_steps(before, requested.plan)
    if len(names) == len(requested.plan.steps):
        return [*cancel(state, reason=f"execution {requested.replay_of} completed every step of the plan")]
    missing = [name for name, step in state.steps.items() if name in names and step.phase is Phase.WAITING]
    return [
        Advanced(
            **identity_fields(state),
            step=name,
            attempt=0,
            result=before.steps[name].result,
            adopted_from=requested.replay_of,
        )
        for name in missing[:MAX_ADOPTED_AT_ONCE]
    ]


def _is_founded(step: PlannedStep, steps: Collection[str]) -> bool:
    return all(name in steps for name in step.depends_on)


def _work(step: PlannedStep, plan: Plan) -> tuple[object, ...]:
    """Return what the result of a step depends on, beside the results of earlier steps."""
    input_ = plan.input if step.input is None else step.input
    args = plan.args if step.args is None else step.args
    return step.function, step.builtin, step.bind, step.depends_on, input_, args
