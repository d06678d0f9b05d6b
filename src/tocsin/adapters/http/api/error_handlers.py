"""Every exception of a handler becomes an answer here, inside of what else is done to all answers.

What was probably meant by a path at which nothing is served.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from http import HTTPStatus
from typing import Final

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....domain.definition import show
from ..ojs import protocol
from . import problems


class ErrorHandler:
    """Answers what went wrong, as long as nothing was answered yet."""

    def __init__(self, app: ASGIApp) -> None:
        """Around `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        begun = False

        async def noticed(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noticed)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            answer = await refuse(Request(scope, receive), error)
            await answer(scope, receive, send)


async def refuse(request: Request, error: Exception) -> Response:
    """The answer to an exception, in the shape that belongs to the path."""
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND:  # of no handler: there is none
        error = problems.Problem(HTTPStatus.NOT_FOUND, "not-found", unserved(request))
    refusal = problems.told(request, error)
    if request.url.path.startswith(protocol.PREFIX):
        return protocol.as_response(refusal, request)
    return problems.as_response(refusal)


_LONGEST: Final = 200
"""Characters of a path up to which it is compared with others."""
_CLOSE: Final = 0.7


def unserved(request: Request) -> str:
    """That nothing is served at the path of a request, and at which path there is what was meant."""
    asked = request.url.path
    known = sorted(_filled(request.app.state.paths, asked)) if len(asked) <= _LONGEST else []
    meant = get_close_matches(asked, known, n=1, cutoff=_CLOSE)
    hint = f"did you mean {meant[0]}?" if meant else f"{request.app.openapi_url} tells all that is"
    return f"nothing is served at {show(asked)}: {hint}"


def _filled(templates: Iterable[str], asked: str) -> Iterator[str]:
    """Paths in which what varies (`{name}`) is as the client wrote it."""
    written = asked.split("/")
    for template in templates:
        parts = template.split("/")
        yield "/".join(
            written[at] if part.startswith("{") and at < len(written) and written[at] else part
            for at, part in enumerate(parts)
        )
