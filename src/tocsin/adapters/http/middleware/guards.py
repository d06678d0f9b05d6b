"""Limits on the size and the duration of requests, and safe response headers.

`BodyLimit` counts the bytes received, because a `Content-Length` may be wrong. `Timeouts` cancels slow requests, so that a slow
client cannot hold resources. `ErrorHandler` answers what they raise, in the shape that the path calls for. `connections` limits what precedes and follows a request.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api.problems import Problem
from ..auth.session import SAFE_METHODS


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Reject a body of more than `size` bytes, and stop reading there."""

    app: ASGIApp
    size: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = f"the body is larger than {self.size:,} bytes. Send less in one request"
        declared = Headers(scope=scope).get("Content-Length", "")
        if declared.isdecimal() and int(declared[:20]) > self.size:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.size:
                # Raised inside the application, where the body is read.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
            return message

        await self.app(scope, counted, send)


STREAM_PATH: Final = "/v1/events"
"""Its answer lasts until the client disconnects."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limit the time from the start of a request to the end of its answer."""

    app: ASGIApp
    seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        timeout = asyncio.timeout(None if scope["path"] == STREAM_PATH else self.seconds)
        try:
            async with timeout:
                await self.app(scope, receive, send)
        except TimeoutError:
            if not timeout.expired():
                raise
            is_read = scope["method"] in SAFE_METHODS
            remedy = "Retry" if is_read else "The outcome is unknown: read the state, then retry"
            raise Problem(503, "timeout", f"not done within {self.seconds:g} seconds. {remedy}") from None


SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class SafeHeaders:
    """Add headers that restrict browsers, unless a handler set them."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)
