"""Resources with one owner among the agents, and the choice of the owner.

Tasks that need a resource are kept apart from others of their function: the owner offers their lanes, and no other agent does.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

EXECUTOR: Final = "executor"
"""The resource of `LEADER_ONLY` jobs: the executor lease, whose owner is the executor leader."""
EVERY_SHARD: Final = "*"
"""In place of the ids of shards: an agent declares every shard."""
BALANCE: Final = 2
"""The number of shards that an owner has more than another agent before one of them moves."""
_SHARD: Final = "shard-"
_SEPARATOR: Final = " "
"""Between the function and the resource of a lane. No function has a blank."""


class Owner(NamedTuple):
    """A process that owns a resource."""

    name: str
    agent_id: str
    epoch: int
    """The sequence of the event that made it the owner."""


class Candidate(NamedTuple):
    """A process that may become the owner of a resource.

    The least is the best: it can take most, and among equals it owns least.
    """

    lacks: int
    """The number of lanes with open tasks of the resource that it cannot take."""
    owned: int
    name: str
    agent_id: str


def shard_resource(shard: str) -> str:
    """Return the resource of a shard, which is one token of a subject."""
    return f"{_SHARD}{shard}"


def shard_of(resource: str) -> str | None:
    """Return the shard of a resource; None: it is another resource."""
    return resource.removeprefix(_SHARD) if resource.startswith(_SHARD) else None


def declares(shards: Collection[str], shard: str) -> bool:
    """Return whether an agent that declares `shards` may own a shard."""
    return shard in shards or EVERY_SHARD in shards


def lane_of(function: str, resource: str | None) -> str:
    return function if resource is None else f"{function}{_SEPARATOR}{resource}"


def function_of(lane: str) -> str:
    return lane.partition(_SEPARATOR)[0]


def is_owned(lane: str) -> bool:
    """Return whether only the owner of a resource gets the tasks of a lane."""
    return _SEPARATOR in lane
