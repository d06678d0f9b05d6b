"""The newest hold lists of agents, until a stage looks at them."""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import msgspec

from ..domain import agent
from .agent_memory import AgentMemory, RefusedHoldLists, Shares

MAX_AGENTS: Final = 5_000
"""The number of processes without an account of their own that a stage keeps, and the number whose first hold lists wait."""
MAX_PER_NAME: Final = 1_000
"""The number of processes of one name: room for the copies of a large team, while invented ids leave room for other names."""
_MAX_NUMBER: Final = 2**62


class ArrivedHoldList(NamedTuple):
    """The newest hold list of a process."""

    name: str
    agent_id: str
    number: int
    body: bytes | None
    """None: there was no room for it, so it says only that the process lives."""


class _Head(msgspec.Struct):
    number: int


_HEADS: Final = msgspec.json.Decoder(_Head)


class HoldListInbox:
    """The newest hold list of each process, for a bounded number of processes and bytes.

    A stage looks at them a few times a second, so that a flood costs little. Invented processes silence no other: a process that the
    stage knows always has room, if only for the fact that it lives, and the names of accounts have room apart from all other names.
    """

    def __init__(
        self, is_known: Callable[[str, str], bool], reserved: Collection[str], refused: RefusedHoldLists
    ) -> None:
        """Start empty.

        `is_known`: whether the stage has a process (name and id), of which it has a bounded number. `reserved`: the
        names of agents with an account of their own.
        """
        self._is_known = is_known
        self._refused = refused
        self._memory = AgentMemory(reserved)
        self._arrived: dict[tuple[str, str], ArrivedHoldList] = {}
        self._unknown = Shares(MAX_PER_NAME, MAX_AGENTS, reserved)
        """The unknown processes that wait."""

    def put(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list, unless a newer list of the same process waits.

        A message that cannot be a hold list is ignored.
        """
        if not (agent.is_agent_name(name) and agent.is_agent_id(agent_id)):
            return
        number = _number_of(body)
        if number is None:
            self._refused.note(name, "unreadable")
            return
        waiting = self._arrived.get((name, agent_id))
        if waiting is not None and waiting.number >= number:
            return
        is_new = waiting is None and not self._is_known(name, agent_id)
        if is_new and not self._unknown.has_room(name):
            self._refused.note(name, "processes")
        elif self._memory.take(name, agent_id, len(body)):
            self._keep(ArrivedHoldList(name, agent_id, number, body), is_new=is_new)
        else:
            self._refused.note(name, "bytes")
            if waiting is None and not is_new:  # an older list that waits says as well that the process lives
                self._keep(ArrivedHoldList(name, agent_id, number, None), is_new=False)

    def _keep(self, arrived: ArrivedHoldList, *, is_new: bool) -> None:
        if is_new:
            self._unknown.charge(arrived.name, arrived.agent_id, 1)
        self._arrived[arrived.name, arrived.agent_id] = arrived

    def take(self) -> list[ArrivedHoldList]:
        """Return the hold lists that arrived, and start empty."""
        arrived, self._arrived = self._arrived, {}
        self._memory.clear()
        self._unknown.clear()
        return [*arrived.values()]


def _number_of(body: bytes) -> int | None:
    """Return the number of a hold list; None: the body cannot be one."""
    if len(body) > agent.MAX_HOLD_LIST_BYTES:
        return None
    try:
        number = _HEADS.decode(body).number
    except msgspec.MsgspecError:
        return None
    return number if 1 <= number <= _MAX_NUMBER else None
