"""The execution: one run of a job, its steps, and when it is over.

State is folded from the execution's own scope; every decision is idempotent: asked again about what was already
decided it answers with nothing, so that a redelivered message adds no fact (hip-62, Job Dependency Graphs, Retry Policy).

    state, evolving                          what holds, and how each fact changes it
    admission, tasks, claims, reports        what is decided, in the order in which an execution meets it
    stopping                                 what ends it before that
    repeated                                 what the facts repeat
"""

from .admission import admit, skip
from .claims import MAX_CLAIMS, ClaimDenied, claim, concerns, is_worn_out, release
from .endings import cancel, expire, give_up
from .evolve import evolve, fold
from .reports import fail, in_flight, succeed
from .state import OVER, Execution, Phase, Status, Step, initial
from .tasks import UPSTREAM_BYTES, delays, dispatch, dispatch_again, resume

__all__ = [
    "MAX_CLAIMS",
    "OVER",
    "UPSTREAM_BYTES",
    "ClaimDenied",
    "Execution",
    "Phase",
    "Status",
    "Step",
    "admit",
    "cancel",
    "claim",
    "concerns",
    "delays",
    "dispatch",
    "dispatch_again",
    "evolve",
    "expire",
    "fail",
    "fold",
    "give_up",
    "in_flight",
    "initial",
    "is_worn_out",
    "release",
    "resume",
    "skip",
    "succeed",
]
