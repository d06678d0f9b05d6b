"""The tasks of a queue, as the matcher shows them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import Field

from .documented_model import DocumentedModel


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Tasks of a queue that a concurrency limit of their job holds back."""

    job: str
    limit: int
    running: int
    """The number of tasks of the group that workers have, in all queues."""
    waiting: int
    """The number of tasks that the limit holds back in the queue."""
    key: str | None = None
    """The path to the value; None: all tasks of the job are counted together."""
    value: str | None = None
    """The value, or its digest; None: the tasks have none."""

    @property
    def counted(self) -> str:
        return counted_tasks(self.job, self.key, self.value)


def counted_tasks(job: str, key: str | None, value: str | None) -> str:
    if key is None:
        return f"job {job}"
    return f"{key}={value} of job {job}" if value is not None else f"{key} without a value of job {job}"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The tasks of a queue that limits of their jobs hold back."""

    waiting: int = 0
    """The number of these tasks."""
    groups: tuple[HeldGroup, ...] = ()
    """The groups with the most of them."""


class QueueBacklog(DocumentedModel, frozen=True, defer_build=True):
    """The tasks of a queue a moment ago."""

    queue: str
    waiting: int = 0
    """The number of tasks that no agent has."""
    running: int = 0
    """The number of tasks that agents have."""
    oldest: datetime | None = None
    """When the oldest task that waits was stored (UTC)."""
    functions: dict[str, int] = Field(default_factory=dict)
    """The functions with the most tasks that wait, and their numbers."""
    purging: int = 0
    """The number of purged tasks whose executions are still to be cancelled."""
    held_by: Literal["concurrency", "namespace", "rate"] | None = None
    """The limit of the queue, or of its namespace, that holds back its tasks; absent: none does."""
    held_back: HeldBack | None = None
    """The tasks that limits of their jobs hold back."""
    deadly_jobs: tuple[str, ...] = ()
    """Jobs with a task that lost two or more workers."""

    @property
    def all_held_back(self) -> int:
        """The number of tasks that any limit holds back."""
        if self.held_by is not None:
            return self.waiting
        return 0 if self.held_back is None else self.held_back.waiting
