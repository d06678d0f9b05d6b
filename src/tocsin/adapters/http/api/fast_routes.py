"""Endpoints that are asked for every job, found in a table by their path.

FastAPI looks for a route in one list after the other and resolves the parameters of its handler by a graph of dependencies:
for a request that does little, that is most of the work. The same handlers stay routes of the application, which documents
them, and answers any other method.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ....domain.access import Principal
from ..auth.security import TRIGGERS, permitted_to
from ..ojs import workers
from ..ojs.bodies import read_object
from ..ojs.responses import OjsResponse
from .components import Components, parts_of

Handler: TypeAlias = Callable[[Components, Principal, dict[str, Any]], Awaitable[dict[str, Any]]]

DIRECT: Final[Mapping[str, Handler]] = {
    f"{workers.PREFIX}/fetch": workers.fetch,
    f"{workers.PREFIX}/ack": workers.ack,
    f"{workers.PREFIX}/nack": workers.nack,
    f"{workers.PREFIX}/heartbeat": workers.heartbeat,
}
"""What is posted to an endpoint of the Open Job Spec's workers, as their routes declare it."""


class FastRoutes:
    """Answers what is in the table, and passes all else on."""

    def __init__(self, app: ASGIApp) -> None:
        """In front of `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        handle = DIRECT.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handle is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        caller = await permitted_to(request, *TRIGGERS)
        answer = await handle(parts_of(request), caller, await read_object(request))
        await OjsResponse(answer)(scope, receive, send)
