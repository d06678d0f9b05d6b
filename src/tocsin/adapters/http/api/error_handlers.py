"""Every exception of a handler becomes an answer here, inside of what else is done to all answers."""

from http import HTTPStatus

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..ojs import responses
from . import problems
from .path_suggestion import unserved


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
    if request.url.path.startswith(responses.PREFIX):
        return responses.as_response(refusal, request)
    return problems.as_response(refusal)
