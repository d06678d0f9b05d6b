"""Messages between workers, the agent keeper and the matcher that no stream stores."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import msgspec

ReceiveHoldList: TypeAlias = Callable[[str, str, bytes], None]
"""Takes the name and the id of the subject, and the body; it returns at once."""
ReceiveBody: TypeAlias = Callable[[bytes], None]
"""Takes the body of a message; it returns at once."""
ReceiveAbsence: TypeAlias = Callable[[str, int], None]
"""Takes the agent's id and the number of a task without a listener."""


class HandOver(msgspec.Struct, frozen=True):
    """A task on its way to an agent; `number` identifies it."""

    name: str
    agent_id: str
    number: int
    body: bytes


class AgentChannel(Protocol):
    """Hold lists of agents, and commands, tasks and notices to them.

    Any message may be lost, and any user of NATS that may publish there may have sent it. To send raises `LogUnavailable`
    without a connection, and a hold list that is too large for the server raises `RequestRefused`.
    """

    @property
    def connections(self) -> int:
        """The number of connections so far, which grows with each reconnect.

        0: there is no connection now.
        """

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        """Send a hold list to all agent keepers."""

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        """Send a hold list, and return whether an agent keeper listens.

        False comes at once, True after `wait` seconds.
        """

    async def catch_up(self) -> None:
        """Return after the hold lists that the server has now were passed on."""

    def hold_lists(self, receive: ReceiveHoldList) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each hold list on."""

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        """Send a command to an agent."""

    def commands(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each command to an agent on."""

    async def hand_over(self, tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        """Send tasks to agents, and return the tasks that are too large for the server."""

    def tasks(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each task for an agent on."""

    async def send_ends(self, name: str, agent_id: str, body: bytes) -> None:
        """Send an agent a notice of executions that are over."""

    def ends(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each notice to an agent on."""

    def absences(self, receive: ReceiveAbsence) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on each task of `hand_over` that reached no process."""

    async def call_roll(self) -> None:
        """Ask all agents to send their hold lists at once."""

    def roll_calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each roll call on."""
