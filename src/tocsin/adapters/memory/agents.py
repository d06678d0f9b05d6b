"""Messages to agents, gateways and writers that no stream stores, in memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from typing import ParamSpec

from ...ports import (
    Clock,
    HandOver,
    LogUnavailable,
    MessageTooLarge,
    ReceiveAbsence,
    ReceiveBody,
    ReceiveHoldList,
)
from ...ports.commit_log import ReceiveTurn
from .stored_stream import MAX_BYTES

P = ParamSpec("P")


class _Channel:
    """A channel that all processes of a test share. A message is received at once."""

    def __init__(self) -> None:
        self._listeners: list[tuple[str, Callable[..., None]]] = []

    def _send(self, subject: str, *message: object) -> bool:
        """Pass a message to the listeners of a subject; return whether there are any."""
        listeners = [receive for of_subject, receive in self._listeners if of_subject == subject]
        for receive in listeners:
            receive(*message)
        return bool(listeners)

    @asynccontextmanager
    async def _listening(self, subject: str, receive: Callable[..., None]) -> AsyncIterator[None]:
        self._listeners.append((subject, receive))
        try:
            yield
        finally:
            self._listeners.remove((subject, receive))


class InMemoryAgentChannel(_Channel):
    """Implement `ports.AgentChannel`."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Without a `clock`, no time passes until a hold list is known to be heard."""
        super().__init__()
        self._clock = clock
        self.connections = 1
        """Set it to 0 to cut the connection, and to another number to restore it."""

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        self._check(body)
        self._send("hold-list", name, agent_id, body)

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        self._check(body)
        is_heard = self._send("hold-list", name, agent_id, body)
        if is_heard and self._clock is not None:
            await self._clock.sleep(wait)
        return is_heard

    async def catch_up(self) -> None:
        self._check(b"")

    def hold_lists(self, receive: ReceiveHoldList) -> AbstractAsyncContextManager[None]:
        return self._listening("hold-list", receive)

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        self._check(body)
        self._send(f"command.{name}.{agent_id}", body)

    def commands(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._listening(f"command.{name}.{agent_id}", _in_this_context(receive))

    async def hand_over(self, tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        self._check(b"")
        for task in tasks:
            is_small = len(task.body) <= MAX_BYTES
            if is_small and not self._send(f"task.{task.name}.{task.agent_id}", task.body):
                self._send("absence", task.agent_id, task.number)
        return [task for task in tasks if len(task.body) > MAX_BYTES]

    def tasks(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._listening(f"task.{name}.{agent_id}", _in_this_context(receive))

    async def send_ends(self, name: str, agent_id: str, body: bytes) -> None:
        self._check(body)
        self._send(f"ends.{name}.{agent_id}", body)

    def ends(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._listening(f"ends.{name}.{agent_id}", _in_this_context(receive))

    def absences(self, receive: ReceiveAbsence) -> AbstractAsyncContextManager[None]:
        return self._listening("absence", receive)

    async def call_roll(self) -> None:
        self._check(b"")
        self._send("roll-call")

    def roll_calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self._listening("roll-call", receive)

    def _check(self, body: bytes) -> None:
        _check(body, is_connected=self.connections > 0)


class InMemoryFetchChannel(_Channel):
    """Implement `ports.FetchChannel`."""

    is_connected = True
    """Set it to False to cut the connection."""

    async def request(self, body: bytes) -> None:
        _check(body, is_connected=self.is_connected)
        self._send("request", body)

    def requests(self, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._listening("request", receive)

    async def answer(self, gateway: str, body: bytes) -> None:
        _check(body, is_connected=self.is_connected)
        self._send(f"answer.{gateway}", body)

    def answers(self, gateway: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._listening(f"answer.{gateway}", receive)

    async def call_fetches(self) -> None:
        _check(b"", is_connected=self.is_connected)
        self._send("call")

    def calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self._listening("call", receive)


class InMemoryTurnChannel(_Channel):
    """Implement `ports.TurnChannel`."""

    async def ask(self, name: str) -> None:
        self._send("turn", name)

    def asked(self, receive: ReceiveTurn) -> AbstractAsyncContextManager[None]:
        return self._listening("turn", receive)


def _check(body: bytes, *, is_connected: bool) -> None:
    """Refuse a message as a server does."""
    if not is_connected:
        raise LogUnavailable("there is no connection")
    if len(body) > MAX_BYTES:
        raise MessageTooLarge("the message is too large", "maximum payload exceeded")


def _in_this_context(receive: Callable[P, None]) -> Callable[P, None]:
    """Return a callback that runs with the context variables of this call.

    The variables of the calling stage, such as its name in log lines, do not concern a worker.
    """
    context = copy_context()

    def received(*args: P.args, **kwargs: P.kwargs) -> None:
        context.copy().run(receive, *args, **kwargs)

    return received
