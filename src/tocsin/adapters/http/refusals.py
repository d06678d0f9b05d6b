"""Every exception of a handler becomes an answer here, inside of what else is done to all answers."""

from fastapi import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import ojs_answers, problems


class Refusals:
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
    refusal = problems.told(request, error)
    if request.url.path.startswith(ojs_answers.PREFIX):
        return ojs_answers.as_response(refusal, request)
    return problems.as_response(refusal)
