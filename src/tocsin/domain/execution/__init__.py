"""The execution: one run of a job, its steps, and its end.

The state is folded from the execution's own scope. Every decision is idempotent: once its outcome is recorded it
returns no events, so that a redelivered message adds nothing (hip-62, Job Dependency Graphs, Retry Policy).

    state, steps                      the state, and how each event changes it
    lifecycle                         decisions on the whole: admit, skip, cancel, expire, give up
    tasks, attempts                   decisions on steps, in the order in which a step passes through them, and steps that a replay adopts
    workflow                          which steps of a workflow are ready, and its outcome
"""

from .attempts import *
from .lifecycle import *
from .state import *
from .steps import *
from .tasks import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
