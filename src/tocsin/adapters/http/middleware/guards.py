"""Limits on the size and the duration of requests, and safe response headers.

The head of a request is bounded: httptools, which parses it, would keep as much as somebody sends.

A request's body is bounded, whatever it says about its length.

A request that takes too long is answered, and its work cancelled: a slow client holds nothing for ever.

Headers that keep browsers from doing with answers what they are not meant for.
"""

import asyncio
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..api.problems import Problem, as_response

MOST: Final = 65_536
"""Bytes of a request line and its headers; a head that came in one piece may be longer by that piece."""


class HeadLimit(HttpToolsProtocol):
    """One connection."""

    _unfinished = 0
    _is_in_head = False

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_in_head:
            return
        self._unfinished += len(data)
        if self._unfinished > MOST:
            self.send_400_response(f"the head of the request is longer than {MOST:,} bytes")

    @override
    def on_message_begin(self) -> None:
        self._is_in_head, self._unfinished = True, 0
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()


TOO_LARGE: Final = 413


class BodyLimit:
    """Refuses a body of more than `size` bytes, and reads no more of it than that."""

    def __init__(self, app: ASGIApp, size: int) -> None:
        """Around `app`."""
        self._app = app
        self._size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = f"the body is larger than {self._size:,} bytes: send less at once"
        said = Headers(scope=scope).get("Content-Length", "")
        if said.isdecimal() and int(said[:20]) > self._size:
            await as_response(Problem(TOO_LARGE, "too-large", reason))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._size:
                # Raised where the body is read, which is inside the application: it becomes an answer there.
                raise HTTPException(TOO_LARGE, reason)
            return message

        await self._app(scope, counted, send)


STREAMS: Final = "/v1/events"
"""Answered for as long as somebody listens."""


class Timeouts:
    """Bounds requests in time, from their first byte of body to the last of the answer."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        """Around `app`."""
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] == STREAMS:
            await self._app(scope, receive, send)
            return
        begun = False

        async def noticed(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        timeout = asyncio.timeout(self._seconds)
        try:
            async with timeout:
                await self._app(scope, receive, noticed)
        except TimeoutError:
            if not timeout.expired() or begun:
                raise
            detail = f"not done within {self._seconds:g} seconds: what became of it is not known, so look before trying again"
            await as_response(Problem(503, "timeout", detail))(scope, receive, send)


SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class SafeHeaders:
    """Adds them where a handler did not say otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        """Around `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
