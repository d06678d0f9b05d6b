"""Fetches of workers over HTTP, and their answers, over core NATS."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from ...ports import ReceiveBody
from .client.connection import Connection
from .client.names import Names
from .core_messages import CoreMessages


class NatsFetchChannel:
    """Implement `ports.FetchChannel`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._messages = CoreMessages(connection)
        self._names = names

    async def request(self, body: bytes) -> None:
        """See `FetchChannel`."""
        await self._messages.send(self._names.fetch_requests, body)

    @asynccontextmanager
    async def requests(self, receive: ReceiveBody) -> AsyncIterator[None]:
        """See `FetchChannel`."""
        async with self._listening(self._names.fetch_requests, receive):
            yield

    async def answer(self, gateway: str, body: bytes) -> None:
        """See `FetchChannel`."""
        await self._messages.send(self._names.fetch_answers(gateway), body)

    @asynccontextmanager
    async def answers(self, gateway: str, receive: ReceiveBody) -> AsyncIterator[None]:
        """See `FetchChannel`."""
        async with self._listening(self._names.fetch_answers(gateway), receive):
            yield

    async def call_fetches(self) -> None:
        """See `FetchChannel`."""
        await self._messages.send(self._names.fetch_calls, b"")

    @asynccontextmanager
    async def calls(self, receive: Callable[[], None]) -> AsyncIterator[None]:
        """See `FetchChannel`."""
        async with self._listening(self._names.fetch_calls, lambda _: receive()):
            yield

    @asynccontextmanager
    async def _listening(self, subject: str, receive: ReceiveBody) -> AsyncIterator[None]:
        def pass_on(_: str, __: str, body: bytes, ___: Mapping[str, str] | None) -> None:
            receive(body)

        async with self._messages.listening(subject, pass_on):
            yield
