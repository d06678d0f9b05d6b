"""The endpoints of workers, without FastAPI's routing.

Every job needs these endpoints, so `FastRoutes` finds them by path in a table. FastAPI would search its routes and resolve a
graph of dependencies, which takes longer than the handler. The handlers stay routes of the application, which documents
them and answers other methods.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ....domain.access import Permission
from ..api.dependencies import parts_of
from ..auth.security import permitted_to
from . import workers
from .protocol import OjsResponse, read_object
from .workers import PREFIX

Handler: TypeAlias = Callable[..., Coroutine[Any, Any, dict[str, Any]]]

DIRECT: Final[Mapping[str, Handler]] = {
    f"{PREFIX}/fetch": workers.fetch,
    f"{PREFIX}/ack": workers.ack,
    f"{PREFIX}/nack": workers.nack,
    f"{PREFIX}/heartbeat": workers.heartbeat,
}
"""Path of a POST request -> its handler, as the routes declare it."""
_ROUTES: Final = {route.path: route for route in workers.router.routes if isinstance(route, APIRoute)}


@dataclass(frozen=True, slots=True)
class FastRoutes:
    """Answer the requests in `DIRECT`, and pass the others on."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = DIRECT.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handle is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = _ROUTES[scope["path"]]  # as FastAPI has it; `Latency` reads it
        request = Request(scope, receive)
        caller = await permitted_to(request, Permission.WORK)
        body = await read_object(request)
        of_request = {"request": request} if handle is workers.fetch else {}
        answer = await handle(parts_of(request), caller, body, **of_request)
        await OjsResponse(answer)(scope, receive, send)
