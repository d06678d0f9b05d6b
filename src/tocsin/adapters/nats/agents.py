"""Messages to agents, and fetches of workers over HTTP, over core NATS."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from nats.errors import Error as NatsError

from ...ports import HandOver, LogUnavailable, ReceiveAbsence, ReceiveBody, ReceiveHoldList
from .client import wire
from .client.connection import Connection
from .client.connection_end import CLOSING_ERRORS
from .client.names import Names
from .client.transport import Outgoing
from .client.wire import too_large
from .core_messages import CoreMessages, is_heard

CATCH_UP_TIMEOUT_S: Final = 2
"""How long the server's answer may take."""
_TOKENS_OF_A_HOLD_LIST: Final = 5
"""`<root>.agent.<name>.<id>.hold`; the root is one token."""


class NatsAgentChannel:
    """Implement `ports.AgentChannel`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._messages = CoreMessages(connection)
        self._names = names
        self._absences = ""
        """The prefix of the reply subjects on which the server says that no process listens; empty: it need not."""

    @property
    def connections(self) -> int:
        client = self._connection.client
        return client.stats["reconnects"] + 1 if client.is_connected else 0

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        await self._messages.send(self._names.hold_list(name, agent_id), body)

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        # An agent keeper never answers on a reply subject, which anyone may choose: only the server, without a subscription.
        subject = self._names.hold_list(name, agent_id)
        self._messages.check(subject, body)
        return await is_heard(self._connection, subject, body, wait=wait)

    async def catch_up(self) -> None:
        # The server sends all messages for this connection before it answers.
        client = self._connection.client
        if not client.is_connected:
            raise LogUnavailable("hold lists may be missing: there is no connection")
        try:
            await client.flush(CATCH_UP_TIMEOUT_S)
            await client.flush(CATCH_UP_TIMEOUT_S)  # the first ping overtakes what the client itself has in its buffer
        except (NatsError, *CLOSING_ERRORS) as error:
            raise LogUnavailable(f"hold lists may be missing: {error!r}") from error

    def hold_lists(self, receive: ReceiveHoldList) -> AbstractAsyncContextManager[None]:
        def pass_on(subject: str, _: str, body: bytes, __: Mapping[str, str] | None) -> None:
            tokens = subject.split(".")
            if len(tokens) == _TOKENS_OF_A_HOLD_LIST:
                receive(tokens[2], tokens[3], body)

        return self._messages.listening(self._names.hold_list("*", "*"), pass_on)

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        await self._messages.send(self._names.agent_commands(name, agent_id), body)

    def commands(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.agent_commands(name, agent_id), receive)

    async def hand_over(self, tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        client = self._connection.client
        messages: list[Outgoing] = []
        refused: list[HandOver] = []
        for task in tasks:
            reply = f"{self._absences}.{task.agent_id}.{task.number}" if self._absences else ""
            outgoing = Outgoing(self._names.agent_tasks(task.name, task.agent_id), task.body, reply=reply)
            if too_large(outgoing, client.max_payload) is None:
                messages.append(outgoing)
            else:
                refused.append(task)
        if not client.is_connected:
            raise LogUnavailable("no task can be handed over: there is no connection")
        try:
            await self._connection.transport.send(messages)
        except CLOSING_ERRORS as error:
            raise LogUnavailable(f"no task can be handed over: {error!r}") from error
        return refused

    def tasks(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.agent_tasks(name, agent_id), receive)

    async def send_ends(self, name: str, agent_id: str, body: bytes) -> None:
        await self._messages.send(self._names.agent_ends(name, agent_id), body)

    def ends(self, name: str, agent_id: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.agent_ends(name, agent_id), receive)

    @asynccontextmanager
    async def absences(self, receive: ReceiveAbsence) -> AsyncIterator[None]:
        # The server answers on the reply subject of a task if no process listens. No agent may publish there.
        inbox = self._connection.client.new_inbox()

        def pass_on(subject: str, _: str, body: bytes, headers: Mapping[str, str] | None) -> None:
            *__, agent_id, number = subject.split(".")
            if not body and headers and headers.get(wire.STATUS) == wire.NO_RESPONDERS and number.isdecimal():
                receive(agent_id, int(number))

        async with self._messages.listening(f"{inbox}.>", pass_on):
            self._absences = inbox
            try:
                yield
            finally:
                self._absences = ""

    async def call_roll(self) -> None:
        await self._messages.send(self._names.roll_call, b"")

    def roll_calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.roll_call, lambda _: receive())


class NatsFetchChannel:
    """Implement `ports.FetchChannel`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._messages = CoreMessages(connection)
        self._names = names

    async def request(self, body: bytes) -> None:
        await self._messages.send(self._names.fetch_requests, body)

    def requests(self, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.fetch_requests, receive)

    async def answer(self, gateway: str, body: bytes) -> None:
        await self._messages.send(self._names.fetch_answers(gateway), body)

    def answers(self, gateway: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.fetch_answers(gateway), receive)

    async def call_fetches(self) -> None:
        await self._messages.send(self._names.fetch_calls, b"")

    def calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self._messages.bodies(self._names.fetch_calls, lambda _: receive())
