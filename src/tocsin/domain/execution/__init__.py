"""The execution: one run of a job, its steps, and when it is over.

State is folded from the execution's own scope; every decision is idempotent: asked again about what was already
decided it answers with nothing, so that a redelivered message adds no fact (hip-62, Job Dependency Graphs, Retry Policy).

    state, evolving                          what holds, and how each fact changes it
    admission, tasks, claims, reports        what is decided, in the order in which an execution meets it
    stopping                                 what ends it before that
    repeated                                 what the facts repeat
"""

from .claims import MAX_CLAIMS, ClaimDenied, affects_step, claim, has_reached_claim_limit, release
from .evolve import evolve, fold
from .lifecycle import admit, cancel, expire, give_up, skip
from .reports import fail, running_steps, succeed
from .state import TERMINAL_STATUSES, Execution, Phase, Status, Step, initial
from .tasks import MAX_UPSTREAM_BYTES, dispatch, dispatch_missing, dispatch_retry, retry_timers

__all__ = [
    "MAX_CLAIMS",
    "MAX_UPSTREAM_BYTES",
    "TERMINAL_STATUSES",
    "ClaimDenied",
    "Execution",
    "Phase",
    "Status",
    "Step",
    "admit",
    "affects_step",
    "cancel",
    "claim",
    "dispatch",
    "dispatch_missing",
    "dispatch_retry",
    "evolve",
    "expire",
    "fail",
    "fold",
    "give_up",
    "has_reached_claim_limit",
    "initial",
    "release",
    "retry_timers",
    "running_steps",
    "skip",
    "succeed",
]
