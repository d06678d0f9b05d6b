"""Places of calls before their token is checked, and of calls that need none.

A caller without a token can begin such a call and leave it open. These calls have few of the service's places, and a new call takes the place of another.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import grpc
from typing_extensions import override

REQUEST_S: Final = 10.0
"""Time within which the request of a call has to arrive."""

Continue = Callable[[Any], Awaitable[Any]]


def address_of(peer: str) -> str:
    """Return the address in a peer such as `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "unknown"


class Places:
    """A number of places, each for one call.

    A call that finds none free takes the place of the oldest call from the address with the most calls.
    """

    def __init__(self, most: int) -> None:
        """Have `most` places."""
        self._most = most
        self._held: dict[asyncio.Timeout, str] = {}
        """The ends of the calls with a place and the addresses of their callers, beginning with the oldest."""

    @asynccontextmanager
    async def place(self, address: str, seconds: float | None) -> AsyncIterator[None]:
        """Hold a place for at most some seconds; None: until a new call takes it.

        `address`: that of the caller.

        Raises:
            TimeoutError: the time is over, or a new call took the place.
        """
        async with asyncio.timeout(seconds) as end:
            self._evict(address)
            self._held[end] = address
            try:
                yield
            finally:
                self._held.pop(end, None)

    def _evict(self, address: str) -> None:
        if len(self._held) < self._most:
            return
        [(busiest, _)] = Counter((*self._held.values(), address)).most_common(1)
        oldest = next(end for end, holder in self._held.items() if holder == busiest)
        del self._held[oldest]
        with suppress(RuntimeError):  # its own time is over in this turn of the loop
            oldest.reschedule(asyncio.get_running_loop().time())


class OpenCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Lets calls hold a place until their request has arrived.

    Calls that need no token hold another place until they end.
    """

    def __init__(self, service: str, requests: Places, conversations: Places) -> None:
        """Have separate places for both kinds of calls.

        `service`: the full name of the service whose calls need a token. `requests`: for calls that wait for their request.
        `conversations`: for watches of health and for reflection.
        """
        self._prefix = f"/{service}/"
        self._requests = requests
        self._conversations = conversations

    @override
    async def intercept_service(self, continuation: Continue, handler_call_details: Any) -> Any:
        """Return the handler of a call, which itself receives the request."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._conversation(handler.stream_stream), **codec)
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._answer(handler.unary_unary), **codec)
        if handler_call_details.method.startswith(self._prefix):
            return grpc.stream_stream_rpc_method_handler(self._stream(handler.unary_stream), **codec)
        return grpc.stream_stream_rpc_method_handler(self._watch(handler.unary_stream), **codec)

    def _answer(self, do: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: ANN401 - grpc has no types
            return await do(await self._request(requests, context), context)

        return answer

    def _stream(self, do: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - likewise
            request = await self._request(requests, context)
            async with aclosing(do(request, context)) as messages:
                async for message in messages:
                    yield message

        return stream

    def _watch(self, do: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def watch(requests: AsyncIterator[Any], context: Any) -> None:  # noqa: ANN401 - likewise
            request = await self._request(requests, context)
            try:
                async with self._conversations.place(address_of(context.peer()), None):
                    await do(request, context)
            except TimeoutError:
                await _make_room(context)

        return watch

    def _conversation(self, do: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def converse(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - likewise
            try:
                async with (
                    self._conversations.place(address_of(context.peer()), None),
                    aclosing(do(requests, context)) as messages,
                ):
                    async for message in messages:
                        yield message
            except TimeoutError:
                await _make_room(context)

        return converse

    async def _request(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: ANN401 - likewise
        try:
            async with self._requests.place(address_of(context.peer()), REQUEST_S):
                return await anext(requests)
        except StopAsyncIteration:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request. Send one message")
        except TimeoutError:
            await _make_room(context)


async def _make_room(context: Any) -> None:  # noqa: ANN401 - likewise
    await context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "the call was open for too long without a token or a request. Call again"
    )
