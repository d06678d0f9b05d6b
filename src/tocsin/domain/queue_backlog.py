"""The backlog of a matched queue, as the KV bucket `queues` shows it."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class QueueBacklog(BaseModel):
    """The tasks of a queue a moment ago."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    queue: str
    waiting: int = 0
    """The number of tasks that no agent has."""
    running: int = 0
    """The number of tasks that agents have."""
    oldest: datetime | None = None
    """When the oldest task that waits was stored (UTC)."""
    functions: dict[str, int] = Field(default_factory=dict)
    """The functions with the most tasks that wait, and their numbers."""
