"""The HTTP API of an installation, over TCP and NATS, and its metrics.

It is not part of `bootstrap/__init__`, because only this module needs the web framework, which takes half a second to
import.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx
from fastapi import FastAPI

from .. import __version__, telemetry
from ..adapters.extras import require_extra
from ..adapters.http.api.app import api, routes
from ..adapters.http.api.dependencies import Components
from ..adapters.http.auth.authentication import Authentication, IdentityProvider
from ..adapters.http.auth.code_flow import CodeFlow
from ..adapters.http.auth.security import OVER_NATS
from ..adapters.http.auth.tokens import Tokens
from ..adapters.http.auth.visibility import Visibility
from ..adapters.http.metrics.exposition import Metrics, metrics_app
from ..adapters.http.middleware.rate_limit import rate_limit
from ..adapters.http.server import InProcessClient, answering, operations
from ..adapters.http.sockets import LOOPBACK, PortInUseError, listen, url_of
from ..adapters.nats.agents import NatsFetchChannel
from ..adapters.nats.client.jetstream_wait import retry_until_available
from ..adapters.nats.event_streams import NatsWebhookQueue
from ..adapters.nats.micro_service import ApiRequest, Operation, serve_operations
from ..adapters.otel.process_metrics import process_metrics
from ..engine.timezone_refresh import TimezoneWatch
from ..services.calculations import SharedRead
from ..services.health import examine
from ..services.health.coordination import leadership_of
from ..services.health.status import as_json, status
from ..services.jobs import Registry
from ..services.operations.event_waiter import EventWaiter
from ..services.operations.task_fetches import TaskFetches
from ..services.queues import queues
from ..services.reset import reset
from ..services.webhooks import Webhooks
from ..settings.fields import is_loopback
from . import Installation, health_target
from .installation import require_archive_extra
from .operators import unheard_streams_of

_log = telemetry.get_logger("tocsin")

KEYS_TIMEOUT_S: Final = 5.0
"""How long the API waits for the keys of an identity provider."""


@asynccontextmanager
async def serving(
    installation: Installation, *, any_port: Collection[str] = (), allow_reset: bool = False
) -> AsyncIterator[str]:
    """Serve the HTTP API within the block; yield its URL.

    `any_port`: the settings (`server.port`, `metrics.port`, `grpc.port`) for which a free port is used if the configured port is taken.
    """
    settings = installation.settings
    require_archive_extra(settings)
    installation.commits.is_lasting = True
    async with AsyncExitStack() as stack:
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # persons who sign in share the client
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=KEYS_TIMEOUT_S, cookies=no_cookies))
        clock = installation.clock
        provider = IdentityProvider(settings.auth, http, clock) if settings.auth.has_provider else None
        authenticator = Authentication(
            Tokens(installation.projections, clock), provider, clock, admin_token=settings.auth.admin_token
        )
        code_flow = (
            CodeFlow(settings.auth, http, provider, clock)
            if provider is not None and settings.auth.has_sign_in
            else None
        )
        host = settings.server.host
        if not is_loopback(host) and not await retry_until_available(authenticator.is_required):
            _log.warning(
                "API listens on the loopback address only: no token is required. Configure auth or create a token",
                action="loopback-only",
                host=host,
                listens_on=LOOPBACK,
            )
            host = LOOPBACK
        rate = await stack.enter_async_context(rate_limit(settings, clock))
        listener = _listen(host, settings.server.port, "server.port", any_port)
        stack.callback(listener.close)
        fetches = TaskFetches(
            installation.log, NatsFetchChannel(installation.connection, installation.names), installation.clock
        )
        registry = Registry(
            installation.log, installation.projections, installation.clock, bridged=settings.bridged_queues
        )
        key = await installation.report_key()
        queue = NatsWebhookQueue(installation.connection, installation.names)
        history = await stack.enter_async_context(installation.history())
        parts = Components(
            version=__version__,
            settings=settings,
            registry=registry,
            log=installation.log,
            stored=installation.stored,
            projections=installation.projections,
            history=history,
            clock=clock,
            report_key=key,
            visibility=Visibility(installation.log, clock),
            status=partial(_status, installation),
            doctor=lambda: examine(health_target(installation)),
            leadership=lambda: leadership_of(health_target(installation).inspection),
            unheard_streams=SharedRead(partial(unheard_streams_of, installation)).answer,
            queue_details=lambda sees, reaches: queues(
                health_target(installation), registry.jobs, sees=sees, reaches=reaches
            ),
            fetches=await stack.enter_async_context(fetches.running()),
            arrivals=await stack.enter_async_context(aclosing(EventWaiter(installation.log))),
            webhooks=Webhooks(registry.jobs, settings.triggers.webhooks, queue, clock, key),
            reset=partial(reset, installation.log, history, registry) if allow_reset else None,
        )
        stack.callback(parts.calculations.close)
        app = api(parts, authenticator, rate, code_flow)
        await stack.enter_async_context(answering(app, listener, settings.server))
        if settings.server.over_nats:
            await stack.enter_async_context(_over_nats(installation, app))
        if settings.grpc.port is not None:
            await stack.enter_async_context(_grpc(parts, app, host, settings.grpc.port, any_port))
        if settings.metrics.enabled:
            await stack.enter_async_context(_metrics(parts, installation, host, any_port))
        for watch in (TimezoneWatch(installation.projections, clock), parts.job_watch):
            stack.callback(asyncio.create_task(watch.run()).cancel)
        url = url_of(listener)
        _log.info("API serving", action="api-serving", url=url, console=settings.server.console_url(url))
        yield url


@asynccontextmanager
async def _over_nats(installation: Installation, app: FastAPI) -> AsyncIterator[None]:
    inside = InProcessClient(app, source=OVER_NATS)

    async def send(request: ApiRequest) -> tuple[int, Mapping[str, str], bytes]:
        return await inside.request(request.method, request.path, request.query, request.body, request.headers)

    known = [Operation(*operation) for operation in operations(routes())]
    async with serve_operations(installation.connection.client, installation.names, known, send, version=__version__):
        yield


@asynccontextmanager
async def _grpc(
    parts: Components, app: FastAPI, host: str, port: int, any_port: Collection[str]
) -> AsyncIterator[None]:
    require_extra("The setting `grpc.port`", "grpc")
    from ..adapters.grpc.server import serving_grpc  # noqa: PLC0415 - it belongs to an extra

    with closing(_listen(host, port, "grpc.port", any_port)) as probe:  # gRPC opens its sockets itself
        port = probe.getsockname()[1]
    async with serving_grpc(app, parts, host, parts.settings.grpc, port) as address:
        _log.info("gRPC serving", action="grpc-serving", address=address)
        yield


@asynccontextmanager
async def _metrics(
    parts: Components, installation: Installation, host: str, any_port: Collection[str]
) -> AsyncIterator[None]:
    settings = parts.settings
    listener = _listen(settings.metrics.host or host, settings.metrics.port, "metrics.port", any_port)
    metrics = Metrics(
        parts,
        settings.metrics.prefix,
        max_jobs=settings.metrics.max_jobs,
        observe=partial(status, health_target(installation)),
        process=process_metrics(),
    )
    try:
        async with answering(metrics_app(metrics), listener, settings.server):
            _log.info("metrics serving", action="metrics-serving", url=f"{url_of(listener)}/metrics")
            yield
    finally:
        listener.close()


async def _status(installation: Installation) -> dict[str, Any]:
    return as_json(await status(health_target(installation)))


def _listen(host: str, port: int, setting: str, any_port: Collection[str]) -> socket.socket:
    try:
        return listen(host, port, setting=setting)
    except PortInUseError:
        if setting not in any_port:
            raise
        return listen(host, 0, setting=setting)
