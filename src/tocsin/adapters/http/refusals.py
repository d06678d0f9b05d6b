"""Answers of the server itself, before a request reaches the application.

They have the shape that the path calls for, as those of the application do.
"""

from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from .api.problems import Problem, as_response
from .ojs import protocol
from .ojs.protocol import OjsHeaders


def _refusing(problem: Problem) -> OjsHeaders:
    """Return an application that answers with a problem."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        is_ojs = scope["path"].startswith(protocol.PREFIX)
        answer = protocol.as_response(problem, Request(scope)) if is_ojs else as_response(problem)
        await answer(scope, receive, send)

    return OjsHeaders(refuse)


too_many_connections: Final = _refusing(
    Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-many-connections",
        "the server or this client has too many connections with running requests. Close some, or retry later",
        headers={"Retry-After": "1", "Connection": "close"},
    )
)
"""The application of a connection without a place."""
upgrade_with_body: Final = _refusing(
    Problem(
        HTTPStatus.BAD_REQUEST,
        "bad-request",
        "a request with the header `Upgrade` may have no body, which would be lost. Send it as HTTP/1.1 without `Upgrade`",
        headers={"Connection": "close"},
    )
)
"""The application of a connection whose parser skips a body, because its client offers another protocol."""


def without_head(url: bytes, status: HTTPStatus, detail: str) -> bytes:
    """Return the answer to a head that is not complete or not HTTP.

    `url` is what has arrived of its URL. The connection has to be closed afterwards.
    """
    answer: Response = PlainTextResponse(detail, status)
    if url.startswith(protocol.PREFIX.encode()):
        problem, request_id = Problem(status, "bad-request", detail), protocol.new_request_id()
        headers = {"OJS-Version": protocol.VERSION, "X-Request-Id": request_id}
        error = protocol.OjsErrorAnswer(error=protocol.as_error(problem, request_id))
        answer = protocol.OjsResponse(error.model_dump(exclude_none=True), status, headers)
    answer.headers["Connection"] = "close"
    head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), head, answer.body)
