"""The newest hold lists of agents, until a stage looks at them."""

from collections import Counter
from typing import Final

import msgspec

from ..domain import agent

MAX_AGENTS: Final = 5_000
"""The number of processes whose hold lists are looked at together."""
MAX_PER_NAME: Final = 1_000
"""The number of processes of one name: room for the copies of a large team, while invented ids leave room for other names."""


class _Head(msgspec.Struct):
    number: int


_HEADS: Final = msgspec.json.Decoder(_Head)


class HoldListInbox:
    """The newest hold list of each process, for a bounded number of processes.

    A stage looks at them a few times a second, so that a flood costs little.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._arrived: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._of_name: Counter[str] = Counter()

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
            if len(self._arrived) >= MAX_AGENTS or self._of_name[name] >= MAX_PER_NAME:
                return
            self._of_name[name] += 1
        elif waiting[0] >= number:
            return
        self._arrived[name, agent_id] = number, body

    def take(self) -> list[tuple[str, str, bytes]]:
        """Return name, id and body of each hold list, and start empty."""
        arrived, self._arrived = self._arrived, {}
        self._of_name.clear()
        return [(name, agent_id, body) for (name, agent_id), (_, body) in arrived.items()]
