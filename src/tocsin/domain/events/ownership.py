"""Events of resources, each of which has one owner among the agents."""

from typing import Literal, TypeAlias

from .message import Message

OwnershipReason: TypeAlias = Literal[
    "vacant", "silent", "ended", "draining", "disabled", "withdrawn", "unable", "balanced"
]


class OwnershipFact(Message):
    """An event about a resource."""

    v: Literal[1] = 1
    """The version of the format."""
    resource: str
    """The resource.

    `executor` is the executor lease, whose owner gets the tasks of `LEADER_ONLY` jobs. `shard-<id>` is a shard, whose owner gets
    the tasks of executions on it.
    """


class OwnershipAssigned(OwnershipFact):
    """An agent owns a resource from now on.

    The matcher stores this in the agent's name when a task needs an owner and the resource has no owner that may stay. A shard
    gets its first owner when an agent declares it. The sequence of the event is the epoch of the owner.
    """

    type: Literal["assigned"] = "assigned"
    """The type of the event."""
    name: str
    """The name of the agent."""
    agent_id: str
    """The id of its process."""
    reason: OwnershipReason
    """The reason for a new owner.

    `vacant`: there was none. `silent`: no hold list of the owner arrived for 30 seconds. `ended`, `draining`, `disabled`: it
    stopped, or takes no more tasks. `withdrawn`: it does not stand any more, or does not declare the shard. Only of shards:
    `unable`: it lacks what an open task needs, and the new owner has it. `balanced`: it owned at least two shards more.
    """
