"""The application: the list of all resources, and the middleware that every request passes."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ..auth.security import Authenticator
from ..middleware.guards import BodyLimit, SafeHeaders, Timeouts
from ..middleware.idempotency import Answers
from ..middleware.rate_limit import RateLimit
from ..ojs import (
    cron,
    manifest,
    protocol,
    queues,
    workers,
)
from ..ojs import (
    dead_letters as ojs_dead_letters,
)
from ..ojs import (
    events as ojs_events,
)
from ..ojs import (
    jobs as ojs_jobs,
)
from ..ojs.workers import FastRoutes
from . import (
    agents,
    apply,
    backfill,
    dead_letters,
    events,
    executions,
    jobs,
    schedule,
    status,
    why,
)
from .dependencies import Components
from .error_handlers import ErrorHandler, answer_error
from .openapi import completed
from .problems import documented

ROUTERS: Final = (
    jobs.router,
    apply.router,
    backfill.router,
    why.router,
    executions.router,
    dead_letters.router,
    agents.router,
    schedule.router,
    manifest.router,
    ojs_jobs.router,
    workers.router,
    queues.router,
    ojs_dead_letters.router,
    ojs_events.router,
    cron.router,
    events.router,
    status.router,
)
COMMON: Final = (400, 401, 403, 409, 413, 422, 429, 500, 503)
"""Statuses of the problems that any endpoint may answer with."""


def routes() -> Iterator[APIRoute]:
    """Yield every endpoint."""
    for router in ROUTERS:
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def api(parts: Components, authenticator: Authenticator, rate: RateLimit) -> FastAPI:
    """Return the application that serves an installation."""
    server = parts.settings.server
    app = _application(parts.version)
    if parts.reset is not None:
        app.include_router(status.dev_router)
    app.state.parts = parts
    app.state.paths = tuple(dict.fromkeys(route.path for route in routes()))
    app.state.authenticator = authenticator
    app.state.rate = rate
    app.state.answers = Answers(parts.projections, parts.clock, timeout_s=server.request_timeout)
    app.state.closing = asyncio.Event()
    app.add_middleware(FastRoutes)  # the first is the innermost
    app.add_middleware(ErrorHandler)
    app.add_middleware(BodyLimit, size=server.max_body)
    app.add_middleware(Timeouts, seconds=server.request_timeout)
    app.add_middleware(protocol.OjsHeaders)
    app.add_middleware(SafeHeaders)
    return app


def openapi(version: str) -> dict[str, Any]:
    """Return the OpenAPI document (`schemas/openapi.json`)."""
    return _application(version).openapi()


def _application(version: str) -> FastAPI:
    app = FastAPI(
        title="Tocsin",
        version=version,
        summary="Decides when jobs run and in what order, records every decision, and lets workers do the work.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # the page would load scripts from another site
        redoc_url=None,
        responses=documented(*COMMON),
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router)
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer_error)
    generate = app.openapi

    def documented_openapi() -> dict[str, Any]:
        return completed(generate(), routes())

    app.openapi = documented_openapi  # type: ignore[method-assign] # FastAPI's own way to extend the document
    return app
