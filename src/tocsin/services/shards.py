"""The shard map, as operators read and define it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pydantic import ConfigDict

from .. import subjects
from ..domain import shard_map
from ..domain.agent import AgentState
from ..domain.documented_model import DocumentedModel
from ..domain.events import Actor, Message, Recorded, Shard, ShardsDefined, newest_of
from ..ports import EventLog
from .scope_decisions import load, redefine


class ShardOwner(DocumentedModel):
    """The agent that alone gets the tasks of a shard."""

    model_config = ConfigDict(frozen=True, defer_build=True)

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


Check: TypeAlias = Callable[[ShardMap], None]


class ShardMaps:
    """The shard map of an installation."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def newest(self) -> ShardMap:
        """Return the newest map.

        Raises:
            LogUnavailable: the log did not answer, or every replica that answers lags.
        """
        return _newest(await load(self._log, subjects.shard_map()))

    async def apply(
        self,
        shards: Iterable[Shard],
        *,
        check: Check = lambda newest: None,  # noqa: ARG005 - any map will do
        by: Actor | None = None,
        reason: str | None = None,
    ) -> bool:
        """Define the whole map; return whether that changed anything.

        `check` raises its own error if the newest map must not be replaced.

        Raises:
            WrongShardMap: a shard is not valid, or the map is too large.
            LogUnavailable: the log did not answer.
        """
        wanted = tuple(shards)

        def define(known: ShardMap) -> list[ShardsDefined]:
            newest = ShardsDefined(shards=known.shards) if known.version else None
            return shard_map.define(newest, known.version, wanted, by=by, reason=reason)

        return await redefine(self._log, subjects.shard_map(), _newest, check, define)


def _newest(stored: Sequence[Recorded[Message]]) -> ShardMap:
    newest = newest_of(stored, ShardsDefined)
    return ShardMap(0, ()) if newest is None else ShardMap(newest.sequence, newest.message.shards)
