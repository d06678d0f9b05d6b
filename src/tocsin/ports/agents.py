"""Messages between workers and the agent keeper that no stream stores."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

ReceiveHoldList: TypeAlias = Callable[[str, str, bytes], None]
"""Takes the name and the id of the subject, and the body; it returns at once."""
ReceiveCommand: TypeAlias = Callable[[bytes], None]
"""Takes the body of a command; it returns at once."""


class AgentChannel(Protocol):
    """Hold lists of agents, and commands to them.

    Any message may be lost, and any user of NATS that may publish there may have sent it.
    """

    @property
    def connections(self) -> int:
        """The number of connections so far, which grows with each reconnect.

        0: there is no connection now.
        """
        ...

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        """Send a hold list to all agent keepers.

        Raises:
            RequestRefused: it is too large for the server.
            LogUnavailable: there is no connection.
        """
        ...

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        """Send a hold list, and return whether an agent keeper listens.

        False comes at once, True after `wait` seconds.

        Raises:
            RequestRefused: it is too large for the server.
            LogUnavailable: there is no connection.
        """
        ...

    def hold_lists(self, receive: ReceiveHoldList) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each hold list on."""
        ...

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        """Send a command to an agent.

        Raises:
            LogUnavailable: there is no connection.
        """
        ...

    def commands(self, name: str, agent_id: str, receive: ReceiveCommand) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each command to an agent on."""
        ...
