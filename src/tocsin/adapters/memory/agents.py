"""Hold lists of agents, and commands to them, in memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from ...ports import (
    Clock,
    HandOver,
    LogUnavailable,
    MessageTooLarge,
    ReceiveAbsence,
    ReceiveBody,
    ReceiveHoldList,
)

MAX_BYTES = 1_048_576
"""The default `max_payload` of a nats-server."""

L = TypeVar("L")
P = ParamSpec("P")


class InMemoryAgentChannel:
    """Implement `ports.AgentChannel`: a channel that all processes of a test share."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Start without listeners.

        Without a `clock`, no time passes until a hold list is known to be heard.
        """
        self._clock = clock
        self.connections = 1
        """Set it to 0 to cut the connection, and to another number to restore it."""
        self._keepers: list[ReceiveHoldList] = []
        self._agents: list[tuple[str, str, ReceiveBody]] = []
        self._takers: list[tuple[str, str, ReceiveBody]] = []
        self._informed: list[tuple[str, str, ReceiveBody]] = []
        self._absences: list[ReceiveAbsence] = []
        self._called: list[Callable[[], None]] = []

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        self._check(body)
        for receive in tuple(self._keepers):
            receive(name, agent_id, body)

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        is_heard = bool(self._keepers)
        await self.announce(name, agent_id, body)
        if is_heard and self._clock is not None:
            await self._clock.sleep(wait)
        return is_heard

    async def catch_up(self) -> None:
        self._check(b"")

    def hold_lists(self, receive: ReceiveHoldList) -> AbstractAsyncContextManager[None]:
        return listening(self._keepers, receive)

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        self._send(self._agents, name, agent_id, body)

    def commands(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return listening(self._agents, (name, agent_id, _in_this_context(receive)))

    async def hand_over(self, tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        self._check(b"")
        for task in tasks:
            if len(task.body) > MAX_BYTES:
                continue
            takers = [receive for name, id_, receive in self._takers if (name, id_) == (task.name, task.agent_id)]
            for receive in takers:
                receive(task.body)
            for absent in () if takers else tuple(self._absences):
                absent(task.agent_id, task.number)
        return [task for task in tasks if len(task.body) > MAX_BYTES]

    def tasks(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return listening(self._takers, (name, agent_id, _in_this_context(receive)))

    async def send_ends(self, name: str, agent_id: str, body: bytes) -> None:
        self._send(self._informed, name, agent_id, body)

    def ends(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return listening(self._informed, (name, agent_id, _in_this_context(receive)))

    def absences(self, receive: ReceiveAbsence) -> AbstractAsyncContextManager[None]:
        return listening(self._absences, receive)

    async def call_roll(self) -> None:
        self._check(b"")
        for receive in tuple(self._called):
            receive()

    def roll_calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return listening(self._called, receive)

    def _send(self, listeners: Sequence[tuple[str, str, ReceiveBody]], name: str, agent_id: str, body: bytes) -> None:
        self._check(body)
        for of_name, of_id, receive in tuple(listeners):
            if (of_name, of_id) == (name, agent_id):
                receive(body)

    def _check(self, body: bytes) -> None:
        check_message(body, is_connected=self.connections > 0)


def check_message(body: bytes, *, is_connected: bool) -> None:
    """Refuse a message as a server does.

    Raises:
        LogUnavailable: there is no connection.
        MessageTooLarge: the message has more than `MAX_BYTES` bytes.
    """
    if not is_connected:
        raise LogUnavailable("there is no connection")
    if len(body) > MAX_BYTES:
        raise MessageTooLarge("the message is too large", "maximum payload exceeded")


def _in_this_context(receive: Callable[P, None]) -> Callable[P, None]:
    """Return a callback that runs with the context variables of this call.

    Those of the stage that calls it, such as its name in log lines, do not concern a worker.
    """
    context = copy_context()

    def received(*args: P.args, **kwargs: P.kwargs) -> None:
        context.copy().run(receive, *args, **kwargs)

    return received


@asynccontextmanager
async def listening(listeners: list[L], listener: L) -> AsyncIterator[None]:
    """Let a listener be among others during the context."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
