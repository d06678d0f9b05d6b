"""The newest hold lists of agents, until a stage looks at them."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from ..domain import agent

MAX_AGENTS: Final = 5_000
"""The number of processes without an account of their own that a stage keeps, and the number whose first hold lists wait."""
MAX_PER_NAME: Final = 1_000
"""The number of processes of one name: room for the copies of a large team, while invented ids leave room for other names."""


class _Head(msgspec.Struct):
    number: int


_HEADS: Final = msgspec.json.Decoder(_Head)


class HoldListInbox:
    """The newest hold list of each process, for a bounded number of processes.

    A stage looks at them a few times a second, so that a flood costs little. Invented processes silence no other: a process that the
    stage knows always has room, and the names of accounts have room apart from all other names.
    """

    def __init__(self, is_known: Callable[[str, str], bool], reserved: Collection[str]) -> None:
        """Start empty.

        `is_known`: whether the stage has a process (name and id), of which it has a bounded number. `reserved`: the
        names of agents with an account of their own.
        """
        self._is_known = is_known
        self._reserved = frozenset(reserved)
        self._arrived: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._of_name: Counter[str] = Counter()
        """The number of unknown processes that wait, by name."""
        self._shared = 0
        """The number of those without an account of their own."""

    def put(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list, unless a newer list of the same process waits.

        A message that cannot be a hold list is ignored.
        """
        if len(body) > agent.MAX_HOLD_LIST_BYTES or not (agent.is_agent_name(name) and agent.is_agent_id(agent_id)):
            return
        try:
            number = _HEADS.decode(body).number
        except msgspec.MsgspecError:
            return
        waiting = self._arrived.get((name, agent_id))
        if waiting is None:
            if not self._is_known(name, agent_id) and not self._take_room(name):
                return
        elif waiting[0] >= number:
            return
        self._arrived[name, agent_id] = number, body

    def _take_room(self, name: str) -> bool:
        """Return whether another unknown process has room, and count it then."""
        is_shared = name not in self._reserved
        if self._of_name[name] >= MAX_PER_NAME or (is_shared and self._shared >= MAX_AGENTS):
            return False
        self._of_name[name] += 1
        self._shared += is_shared
        return True

    def take(self) -> list[tuple[str, str, bytes]]:
        """Return name, id and body of each hold list, and start empty."""
        arrived, self._arrived = self._arrived, {}
        self._of_name.clear()
        self._shared = 0
        return [(name, agent_id, body) for (name, agent_id), (_, body) in arrived.items()]
