"""Limits on requests, safe response headers, and answers to exceptions.

`BodyLimit` counts the bytes received, because a `Content-Length` may be wrong. `Timeouts` cancels slow requests, so that a slow
client cannot hold resources. `ErrorHandler` answers what they raise, in the shape that the path calls for. `connections` limits what precedes and follows a request.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....domain.definition import show
from ..api.problems import Problem, as_response, log_and_answer
from ..auth.session import SAFE_METHODS
from ..ojs import protocol


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


_MAX_COMPARED_LENGTH: Final = 200
"""Longer paths are not compared with the known paths, because that takes quadratic time."""


@dataclass(frozen=True, slots=True)
class ErrorHandler:
    """Answer exceptions inside the middleware that applies to every answer, unless an answer has begun."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def observed(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, observed)
        except ClientDisconnect:
            return
        except Exception as error:
            if has_begun:
                raise
            answer = await answer_error(Request(scope, receive), error)
            await answer(scope, receive, send)


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the answer to an exception in the shape that the path calls for."""
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND:  # no route matched
        error = Problem(HTTPStatus.NOT_FOUND, "not-found", unserved(request))
    problem = log_and_answer(request, error)
    if request.url.path.startswith(protocol.PREFIX):
        return protocol.as_response(problem, request)
    return as_response(problem)


def unserved(request: Request) -> str:
    """Say that a path is not served, and suggest the most similar path that is."""
    path = request.url.path
    known = sorted(_filled(request.app.state.paths, path)) if len(path) <= _MAX_COMPARED_LENGTH else []
    similar = get_close_matches(path, known, n=1, cutoff=0.7)
    hint = f"did you mean {similar[0]}?" if similar else f"{request.app.openapi_url} lists every path"
    return f"nothing is served at {show(path)}: {hint}"


def _filled(templates: Iterable[str], path: str) -> Iterator[str]:
    """Yield path templates with their parameters (`{name}`) replaced by the parts of a path."""
    segments = path.split("/")
    for template in templates:
        parts = template.split("/")
        yield "/".join(
            segments[index] if part.startswith("{") and index < len(segments) and segments[index] else part
            for index, part in enumerate(parts)
        )
