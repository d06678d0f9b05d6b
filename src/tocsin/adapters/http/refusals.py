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


async def _too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    detail = "the server or this client has too many connections with running requests. Close some, or retry later"
    problem = Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too-many-connections",
        detail,
        headers={"Retry-After": "1", "Connection": "close"},
    )
    is_ojs = scope["path"].startswith(protocol.PREFIX)
    answer = protocol.as_response(problem, Request(scope)) if is_ojs else as_response(problem)
    await answer(scope, receive, send)


too_many_connections: Final = OjsHeaders(_too_many_connections)
"""The application of a connection without a place."""


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
