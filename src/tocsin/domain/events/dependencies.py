"""Events of an execution that waits for other jobs."""

from datetime import datetime
from typing import Literal, TypeAlias

from .execution import ExecutionFact
from .message import Message

WaitOutcome: TypeAlias = Literal["met", "dependency_missing", "dependency_failed", "queue_full"]


class DependencyRun(Message):
    """The run of another job that decided on a dependency."""

    job: str
    """The name of the job."""
    since: datetime
    """The beginning (UTC) of the window, which itself does not belong to it."""
    execution_id: str | None = None
    """The last run in the window; absent: there was none."""
    ended: Literal["completed", "failed", "cancelled"] | None = None
    """The end of that run; absent: it had not ended."""
    hidden: bool = False
    """Whether the viewers of the job did not let the execution's job learn of its runs. Then no run is named."""


class DependenciesSettled(ExecutionFact):
    """An execution waits for other jobs no longer.

    The dependency keeper stores this when the last run of each job has ended as wanted, or when the time is over. The lock
    keeper then admits or skips the execution.
    """

    type: Literal["dependencies-settled"] = "dependencies-settled"
    """The type of the event."""
    outcome: WaitOutcome
    """`met`: it may run. `dependency_failed`: the last run of a job failed. `dependency_missing`: a job did not run to its end, or is hidden.
    `queue_full`: as many executions of its job as may wait did so already."""
    runs: tuple[DependencyRun, ...] = ()
    """The last run of each job, in the order of the definition; none with `queue_full`."""
