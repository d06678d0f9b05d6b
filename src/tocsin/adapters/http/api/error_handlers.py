"""Turn exceptions into answers, and suggest a path if the requested path is not served."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....domain.definition import show
from ..ojs import protocol
from . import problems

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
        error = problems.Problem(HTTPStatus.NOT_FOUND, "not-found", unserved(request))
    problem = problems.log_and_answer(request, error)
    if request.url.path.startswith(protocol.PREFIX):
        return protocol.as_response(problem, request)
    return problems.as_response(problem)


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
