"""An agent as the KV bucket `agents`, the command line and the API show it."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from .agent import AgentState


class AgentRecord(BaseModel):
    """A worker process."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    """The configured name, which several processes may share."""
    agent_id: str
    """The id of the process, new at each start."""
    state: AgentState
    """`ENABLED`, `DISABLED` (its name takes no tasks), `DRAINING` (it finishes its tasks), or `LOST` (it is silent)."""
    since: datetime | None = None
    """The time of its newest event."""
    host: str = ""
    version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    queues: list[str] = Field(default_factory=list)
    functions: list[str] = Field(default_factory=list)
    max_concurrent_jobs: int = 0
    """The number of tasks that it runs at the same time."""
    held: list[str] = Field(default_factory=list)
    """The tasks that it holds, as far as they are known: `<execution id>.<step>.<attempt>`."""
