"""The execution: one run of a job, its steps, and its end.

The state is folded from the execution's own scope. Every decision is idempotent: once its outcome is recorded it
returns no events, so that a redelivered message adds nothing (hip-62, Job Dependency Graphs, Retry Policy).

    state, steps                      the state, and how each event changes it
    lifecycle                         decisions on the whole: admit, skip, cancel, expire, give up
    tasks, attempts                   decisions on steps, in the order in which a step passes through them, and steps that a replay adopts
    workflow                          which steps of a workflow are ready, and its outcome
"""

from .attempts import (
    WORKER_LOST,
    ClaimDenied,
    adopt,
    adoptable_steps,
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
    expire,
    gather,
    give_up,
    purge,
    settle,
    skip,
    skip_reason,
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
    "succeed",
    "waiting_steps",
    "waits_for",
]
