"""Fetches of workers over HTTP, and their answers, in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ...ports import LogUnavailable, MessageTooLarge, ReceiveBody
from .agents import MAX_BYTES


class InMemoryFetchChannel:
    """Implement `ports.FetchChannel`: a channel that all processes of a test share."""

    def __init__(self) -> None:
        """Start without listeners."""
        self.is_connected = True
        """Set it to False to cut the connection."""
        self._listeners: list[tuple[str, ReceiveBody]] = []

    async def request(self, body: bytes) -> None:
        self._send("request", body)

    @asynccontextmanager
    async def requests(self, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening("request", receive):
            yield

    async def answer(self, gateway: str, body: bytes) -> None:
        self._send(f"answer.{gateway}", body)

    @asynccontextmanager
    async def answers(self, gateway: str, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening(f"answer.{gateway}", receive):
            yield

    async def call_fetches(self) -> None:
        self._send("call", b"")

    @asynccontextmanager
    async def calls(self, receive: Callable[[], None]) -> AsyncIterator[None]:
        async with self._listening("call", lambda _: receive()):
            yield

    @asynccontextmanager
    async def _listening(self, subject: str, receive: ReceiveBody) -> AsyncIterator[None]:
        listener = subject, receive
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def _send(self, subject: str, body: bytes) -> None:
        if not self.is_connected:
            raise LogUnavailable("there is no connection")
        if len(body) > MAX_BYTES:
            raise MessageTooLarge("the message is too large", "maximum payload exceeded")
        for of_subject, receive in tuple(self._listeners):
            if of_subject == subject:
                receive(body)
