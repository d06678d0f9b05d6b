"""A request that takes too long is answered, and its work cancelled: a slow client holds nothing for ever."""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api.problems import Problem, as_response

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
