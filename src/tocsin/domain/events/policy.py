"""Events of the scheduler policy: limits that hold for the whole installation."""

from typing import Literal

from .message import Actor, Message, Sequence


class PolicyDefined(Message):
    """An administrator defined the scheduler policy.

    The event is the whole policy, and its sequence is the version. A field that is absent sets nothing: what would apply without
    a policy applies.
    """

    v: Literal[1] = 1
    """The version of the format."""
    type: Literal["policy-defined"] = "policy-defined"
    """The type of the event."""
    previous: Sequence = 0
    """The sequence of the preceding policy; 0: none."""
    max_concurrent_jobs: int | None = None
    """The number of tasks that the matcher gives one agent at most."""
    job_timeout: float | None = None
    """The timeout in seconds of jobs that are registered without a timeout, and the longest that a job may have."""
    job_history_retention_days: int | None = None
    """The days for which the history keeps finished executions and resolved dead letters."""
    enable_job_history: bool | None = None
    """Whether the history records executions."""
    by: Actor | None = None
    """The administrator."""
    reason: str | None = None
    """The administrator's reason."""
