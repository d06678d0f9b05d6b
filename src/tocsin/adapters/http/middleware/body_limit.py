"""A request's body is bounded, whatever it says about its length."""

from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api.problems import Problem, as_response

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
