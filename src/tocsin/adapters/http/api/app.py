"""The application: the list of all resources, and the middleware that every request passes."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from types import ModuleType
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .... import telemetry
from ....domain.definition import JobDefinition
from ....domain.formats import ojs, scratchbird
from ....services.event_feeds import EventFeeds
from ..auth.authentication import Authentication
from ..auth.code_flow import CodeFlow
from ..console import files as console_files
from ..console import sign_in
from ..middleware.guards import BodyLimit, ErrorHandler, SafeHeaders, Timeouts, answer_error
from ..middleware.idempotency import HEADER as IDEMPOTENCY_KEY
from ..middleware.idempotency import MAX_KEY, Answers, IdempotentRoute
from ..middleware.rate_limit import RateLimit
from ..ojs import (
    admin,
    batches,
    cron,
    event_search,
    manifest,
    progress,
    protocol,
    queues,
    workers,
    workflows,
)
from ..ojs import dead_letters as ojs_dead_letters
from ..ojs import jobs as ojs_jobs
from ..ojs.workers import FastRoutes
from . import (
    agents,
    apply,
    dead_letter_groups,
    dead_letters,
    documents,
    events,
    executions,
    job_past,
    jobs,
    notifications,
    overview,
    schedule,
    sql,
    status,
    timeline,
    tokens,
    webhooks,
    why,
)
from .dependencies import Components
from .problems import ProblemDetails, documented

NONE: Final = "(none)"
"""The label of a path or a method that no route serves: both are the client's choice."""

_latency: Final = telemetry.meter().create_histogram(
    "tocsin_http_request_seconds",
    description="Time until the API begins an answer, by route.",
    explicit_bucket_boundaries_advisory=[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30],
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Measures each request until its answer begins: a stream may last for days."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                is_served = scope["method"] in (getattr(route, "methods", None) or ())
                labels = {
                    "route": getattr(route, "path", NONE),
                    "method": scope["method"] if is_served else NONE,
                    "status": message["status"],
                }
                _latency.record(perf_counter() - began, labels)
            await send(message)

        await self.app(scope, receive, measured)


_REFERENCE: Final = "#/components/schemas/{model}"


def completed(document: dict[str, Any], routes: Iterable[APIRoute]) -> dict[str, Any]:
    """Add problems, job definitions and the idempotency header to an OpenAPI document."""
    for model in (ProblemDetails, protocol.OjsErrorAnswer):
        schema = model.model_json_schema(ref_template=_REFERENCE)
        document["components"]["schemas"] |= {**schema.pop("$defs", {}), model.__name__: schema}
    document["components"]["schemas"] |= written_schemas()
    header = {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]+$"},
        "description": "A request with the same key gets the same answer and has no second effect, for a day.",
    }
    for route in routes:
        if isinstance(route, IdempotentRoute) and "POST" in (route.methods or ()):
            document["paths"][route.path]["post"].setdefault("parameters", []).append(header)
    return document


def written_schemas() -> dict[str, Any]:
    """Return the schemas of job definitions in each of their formats."""
    job = JobDefinition.model_json_schema(mode="validation", ref_template=_REFERENCE)
    parts = {f"Written{name}": part for name, part in job.pop("$defs").items()}
    job = _renamed(job, parts)
    job["title"] = "Hip62Job"
    job["properties"] |= {
        "lock": {"type": "boolean", "description": "true: skip a run while another is active; false: let runs overlap"},
        "concurrent": {"type": "boolean", "description": "the opposite of `lock`"},
    }
    return {
        **{name: _renamed(part, parts) for name, part in parts.items()},
        "Hip62Job": job,
        "WrittenCron": {**_CRON, "properties": {**_CRON["properties"], **_named(job, sorted(ojs.EXTENSIONS))}},
        "ScratchBirdJob": {
            **_SCRATCHBIRD,
            "properties": {
                **_named(job, ("name", "description", "timeout", "depends_on")),
                **_SCRATCHBIRD["properties"],
                **_named(job, sorted(scratchbird.EXTENSIONS)),
            },
        },
        "WrittenJob": {
            "anyOf": [{"$ref": _REFERENCE.format(model=name)} for name in ("Hip62Job", "WrittenCron", "ScratchBirdJob")]
        },
    }


def _named(job: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: job["properties"][name] for name in names}


def _renamed(schema: Any, parts: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return a schema with its references renamed, because answers have schemas of the same names."""
    match schema:
        case dict():
            return {
                key: f"#/components/schemas/Written{value.rpartition('/')[2]}"
                if key == "$ref" and f"Written{value.rpartition('/')[2]}" in parts
                else _renamed(value, parts)
                for key, value in schema.items()
            }
        case list():
            return [_renamed(item, parts) for item in schema]
        case _:
            return schema


_CRON: dict[str, Any] = {
    "title": "CronJob",
    "description": "ojs-cron §2; `expression` in place of `cron`, and `job_template` around `type`, `args` and `options`, are also accepted.",
    "type": "object",
    "required": ["name", "cron", "type"],
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9\-\.]*$", "maxLength": 255},
        "cron": {"type": "string"},
        "timezone": {"type": "string", "default": "UTC"},
        "type": {"type": "string", "pattern": r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"},
        "args": {"type": "array", "items": {}},
        "options": {
            "type": "object",
            "properties": {
                "queue": {"type": "string"},
                "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds."},
                "retry": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "meta": {"type": "object"},
            },
        },
        "overlap_policy": {"enum": ["skip", "allow", "cancel_previous", "enqueue"]},
        "enabled": {"type": "boolean"},
        "description": {"type": ["string", "null"]},
    },
}

_MOMENT = {"type": "string", "description": "A date and a time, in the zone unless it has an offset."}
_DURATION = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
_SCRATCHBIRD: dict[str, Any] = {
    "title": "ScratchBirdJob",
    "description": "A job of ScratchBird's scheduler; the names of choices may be in lower case.",
    "type": "object",
    "properties": {
        "job_name": {"type": "string", "description": "In place of `name`."},
        "schedule_kind": {"enum": [*scratchbird.SCHEDULES]},
        "schedule_type": {"enum": ["ONE_TIME", "RECURRING"]},
        "cron_expression": {"type": "string"},
        "schedule_tz": {"type": "string", "default": "UTC"},
        "timestamp": _MOMENT,
        "interval_seconds": _DURATION,
        "starts_at": _MOMENT,
        "ends_at": _MOMENT,
        "on_completion": {"enum": ["PRESERVE", "DROP"], "default": "PRESERVE"},
        "max_retries": {
            "type": "integer",
            "minimum": 0,
            "maximum": scratchbird.MAX_RETRIES,
            "default": scratchbird.DEFAULT_RETRIES,
        },
        "retry_backoff": {**_DURATION, "default": scratchbird.DEFAULT_BACKOFF_S},
        "state": {"enum": ["ENABLED", "DISABLED"], "default": "ENABLED"},
        "catch_up": {"enum": [*scratchbird.CATCH_UP], "default": "last"},
        "job_sql": {"type": "string", "description": "A statement; each `:name` gets the value of the input."},
        "connection": {"type": "string", "description": "The connection of a worker for `job_sql` or `procedure`."},
        "job_type": {
            "enum": ["EXTERNAL", "SQL", "PROCEDURE"],
            "description": "Follows from the work; must agree with it.",
        },
        "external_command": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "A text is split as a shell does, and no shell runs.",
        },
    },
}


def _routers(*modules: ModuleType) -> tuple[APIRouter, ...]:
    return tuple(module.router for module in modules)


ROUTERS: Final = (
    *_routers(jobs, apply, sql, job_past, why, overview, timeline),
    *_routers(executions, dead_letter_groups, dead_letters, agents),
    agents.queue_router,
    *_routers(documents, notifications, schedule),
    *_routers(manifest, batches, ojs_jobs, workflows, progress, workers, queues, ojs_dead_letters),
    batches.ack_router,
    *_routers(event_search, admin, cron, events, status, tokens),
)
CONSOLE: Final = (sign_in.router, console_files.router)
COMMON: Final = (400, 401, 403, 409, 413, 422, 429, 500, 503)
"""Statuses of the problems that any endpoint may answer with."""


def routes() -> Iterator[APIRoute]:
    for router in ROUTERS:
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def api(
    parts: Components, authenticator: Authentication, rate: RateLimit | None, code_flow: CodeFlow | None = None
) -> FastAPI:
    server = parts.settings.server
    app = _application(parts.version, console=server.console)
    if parts.reset is not None:
        app.include_router(status.dev_router)
    app.state.parts = parts
    app.state.paths = tuple(dict.fromkeys(route.path for route in routes()))
    app.state.authenticator = authenticator
    app.state.code_flow = code_flow
    app.state.rate = rate
    app.state.public_url = server.public_url
    app.state.answers = Answers(parts.projections, parts.clock, timeout_s=server.request_timeout)
    app.state.closing = asyncio.Event()
    app.state.feeds = EventFeeds(parts.log, server.max_event_streams, server.max_event_streams_per_caller)
    app.add_middleware(FastRoutes)  # the first is the innermost
    app.add_middleware(BodyLimit, size=server.max_body)
    app.add_middleware(Timeouts, seconds=server.request_timeout)
    app.add_middleware(ErrorHandler)
    app.add_middleware(protocol.OjsNegotiation)
    app.add_middleware(protocol.OjsHeaders)
    app.add_middleware(SafeHeaders)
    app.add_middleware(Latency)
    return app


def openapi(version: str) -> dict[str, Any]:
    """Return the OpenAPI document (`schemas/openapi.json`)."""
    return _application(version, console=False).openapi()


@cache
def _included(*, console: bool) -> tuple[BaseRoute, ...]:
    """Return the routers' endpoints, which all applications of this process share.

    At its first request, FastAPI works out the parameters of each endpoint. That costs as much as a hundred requests.
    """
    shared = FastAPI(responses=documented(*COMMON), openapi_url=None)
    for router in (*ROUTERS, webhooks.router, *(CONSOLE if console else ())):
        shared.include_router(router)
    return tuple(shared.routes)


def _application(version: str, *, console: bool) -> FastAPI:
    app = FastAPI(
        routes=[*_included(console=console)],
        title="Tocsin",
        version=version,
        summary="Decides when jobs run and in what order, records every decision, and lets workers do the work.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # the page would load scripts from another site
        redoc_url=None,
        redirect_slashes=False,
    )
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer_error)
    generate = app.openapi
    app.openapi = lambda: completed(generate(), routes())  # type: ignore[method-assign] # FastAPI's own way to extend the document
    return app
