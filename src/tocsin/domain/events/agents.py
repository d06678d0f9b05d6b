"""Events of agents: registered worker processes.

An agent has a name, which is configured, and an id, which is new at each start of the process. An operator disables a
name; everything else is about one process.
"""

from typing import Annotated, Literal

from pydantic import Field

from .message import Actor, Message

OF_THE_NAME = "all"
"""Stands for the id in the subjects of events about a name."""


class AgentFact(Message):
    """An event about an agent."""

    v: Literal[1] = 1
    """The version of the format."""
    name: str
    """The agent's name, which is configured and one token of a subject."""
    agent_id: str
    """The id of the process, or `all` for an event about the name."""


class AgentRegistered(AgentFact):
    """An agent registered, changed what it registered with, or was heard again after a silence.

    The agent keeper stores this after a hold list.
    """

    type: Literal["registered"] = "registered"
    """The type of the event."""
    host: str = ""
    """The host, as the agent names it."""
    version: str = ""
    """The version of Tocsin that the agent runs."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that the agent was given."""
    queues: tuple[str, ...] = ()
    """The queues that it takes tasks from."""
    functions: tuple[str, ...] = ()
    """The functions for which it has handlers, sorted."""
    max_concurrent_jobs: Annotated[int, Field(ge=0)] = 0
    """The number of tasks that it runs at the same time."""


class AgentDrainStarted(AgentFact):
    """An operator drains an agent: it finishes its tasks and takes no more."""

    type: Literal["drain-started"] = "drain-started"
    """The type of the event."""
    by: Actor | None = None
    """The operator."""
    reason: str | None = None
    """The operator's reason."""


class AgentFellSilent(AgentFact):
    """An agent is lost: no hold list of it arrived for some time.

    The agent keeper stores this. The process died, or cannot reach NATS.
    """

    type: Literal["fell-silent"] = "fell-silent"
    """The type of the event."""
    silent_for: float
    """Seconds since its last hold list, or since the agent keeper began to listen."""


class AgentEnded(AgentFact):
    """An agent stopped in order.

    The agent keeper stores this after the agent's last hold list.
    """

    type: Literal["ended"] = "ended"
    """The type of the event."""


class AgentForgotten(AgentFact):
    """A lost or ended agent is no longer listed.

    The archiver may remove its events.
    """

    type: Literal["forgotten"] = "forgotten"
    """The type of the event."""


class AgentSwitched(AgentFact):
    """An operator disabled or enabled all agents of a name, now and after their restarts."""

    agent_id: str = OF_THE_NAME
    """Always `all`."""
    type: Literal["switched"] = "switched"
    """The type of the event."""
    enabled: bool
    """False: agents of this name take no tasks."""
    by: Actor | None = None
    """The operator."""
    reason: str | None = None
    """The operator's reason."""
