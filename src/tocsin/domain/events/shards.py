"""Events of the shard map: the parts of the work of an installation."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from .message import Actor, Message, Sequence


class ShardState(StrEnum):
    """The state of a shard."""

    ACTIVE = "ACTIVE"
    """Occurrences run on it."""
    DRAINING = "DRAINING"
    """Executions on it finish, and further occurrences do not run on it."""
    DISABLED = "DISABLED"
    """Occurrences do not run on it."""


class Shard(Message):
    """A named part of the work."""

    shard_id: str
    """The id, which names of executions and locks contain; one token of a subject."""
    name: str = ""
    """A name for people."""
    state: ShardState = ShardState.ACTIVE
    """Whether occurrences run on it."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for people and programs."""


class ShardsDefined(Message):
    """An operator defined the shards of the installation.

    The event is the whole map, and its sequence is the version that `due` names.
    """

    v: Literal[1] = 1
    """The version of the format."""
    type: Literal["shards-defined"] = "shards-defined"
    """The type of the event."""
    previous: Sequence = 0
    """The sequence of the preceding map; 0: none."""
    shards: tuple[Shard, ...] = ()
    """All shards, sorted by id."""
    by: Actor | None = None
    """The operator."""
    reason: str | None = None
    """The operator's reason."""
