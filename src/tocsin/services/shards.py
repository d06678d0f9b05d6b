"""The shard map, as operators read and define it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from typing_extensions import override

from .. import subjects
from ..domain import shard_map
from ..domain.agent import AgentState
from ..domain.documented_model import DocumentedModel
from ..domain.events import Actor, Message, Recorded, Shard, ShardsDefined, newest_of
from .scope_decisions import DeclaredDocument


class ShardOwner(DocumentedModel, frozen=True, defer_build=True):
    """The agent that alone gets the tasks of a shard."""

    name: str
    """The name of the agent."""
    agent_id: str
    """The id of its process."""
    state: AgentState
    """The state of the agent. Unless it is `ENABLED`, the next task of the shard gets another owner."""


class ShardMap(NamedTuple):
    """The newest map and its version.

    The version is the sequence of its event; 0: there is no map.
    """

    version: int
    shards: tuple[Shard, ...]
    owners: Mapping[str, ShardOwner] = {}
    """The owners by shard, if they were read. Any worker gets the tasks of a shard without an owner."""


class ShardMaps(DeclaredDocument[ShardMap, Shard]):
    """The shard map of an installation."""

    _scope = subjects.shard_map()

    @override
    def _read(self, stored: Sequence[Recorded[Message]]) -> ShardMap:
        newest = newest_of(stored, ShardsDefined)
        return ShardMap(0, ()) if newest is None else ShardMap(newest.sequence, newest.message.shards)

    @override
    def _define(
        self, known: ShardMap, wanted: tuple[Shard, ...], by: Actor | None, reason: str | None
    ) -> list[ShardsDefined]:
        newest = ShardsDefined(shards=known.shards) if known.version else None
        return shard_map.define(newest, known.version, wanted, by=by, reason=reason)
