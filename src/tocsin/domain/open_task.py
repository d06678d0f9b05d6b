"""A task that no worker has, and the group of its concurrency limit."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from .events import Dispatched
from .hold_up_time import HoldUpTimes, no_times
from .ownership import lane_of, shard_resource
from .token_bucket import TokenBucket

StepKey: TypeAlias = tuple[str, str]
"""The scope of an execution, and the name of one of its steps."""
LaneKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LimitGroup:
    """The tasks that a concurrency limit counts together."""

    job: str
    key: str | None = None
    """The path to the value; None: all tasks of the job."""
    value: str | None = None
    """The value at the path; None: tasks without it."""


@dataclass(frozen=True, slots=True)
class RateGroup:
    """The tasks whose starts a rate counts together."""

    key: str
    bucket: TokenBucket


@dataclass(slots=True)
class OpenTask:
    """A task, as it is stored."""

    scope: str
    step: str
    attempt: int
    sequence: int
    subject: str
    job: str
    queue: str
    function: str
    time: datetime
    """When it was stored (UTC)."""
    message: Dispatched | None
    """The task as its worker gets it; None: in a projection."""
    priority: int = 0
    group: LimitGroup | None = None
    """The tasks that its concurrency limit counts; None: unlimited."""
    limit: int = 0
    """The greatest number of tasks of its group that workers may have."""
    rate: RateGroup | None = None
    """The tasks whose starts are counted with its own; None: unlimited."""
    resource: str | None = None
    """The resource whose owner alone gets it; None: any worker does."""
    shard: str | None = None
    """The shard that it runs on; None: its job is not divided."""
    deaths: int = 0
    """The number of workers that were lost with a task of its step. If there are any, it is a suspect: an agent gets one at a time."""
    runs_alone: bool = False
    """Whether its agent gets no other task beside it."""
    delivery: int = 1
    """The delivery number of its claim: more than 1 if the same attempt was claimed before, and released."""
    refused_by: frozenset[str] = frozenset()
    """The agents that handed the task back."""
    held_up: HoldUpTimes = field(default_factory=no_times)
    """The seconds for which limits held it back, until it was last taken."""
    times_before: tuple[HoldUpTimes, HoldUpTimes] | None = None
    """What the gates of its line and its queue had counted when it came; None: it has neither."""
    key: StepKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.scope, self.step

    @property
    def ownable(self) -> str | None:
        """The resource that may have an owner: its own, or that of its shard."""
        return self.resource if self.shard is None else shard_resource(self.shard)

    @property
    def lane(self) -> str:
        """The lane that it waits in: its function, and its resource if it has one."""
        return lane_of(self.function, self.resource)

    @property
    def execution(self) -> str:
        """The key of its execution: `<job>.<execution id>`, the job as one token of a subject."""
        return self.scope.removeprefix("execution.").removesuffix(".>")

    @property
    def execution_id(self) -> str:
        return self.execution.rpartition(".")[2]

    @property
    def name(self) -> str:
        """The task as operators see it: `<execution id>.<step>.<attempt>`."""
        return f"{self.execution_id}.{self.step}.{self.attempt}"

    @property
    def held_name(self) -> str:
        """The task as a hold list names it: `<job>.<execution id>.<step>.<attempt>`."""
        return f"{self.execution}.{self.step}.{self.attempt}"
