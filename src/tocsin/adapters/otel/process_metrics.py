"""The metrics and the probes of this process on one port.

The metrics are Tocsin's instruments of OpenTelemetry, in Prometheus' text format.
`/livez` answers while the event loop turns. `/readyz` answers 200 while the process does its work, and otherwise 503 with the reason.

A process has one meter provider. It is made at the first call, so processes that serve no metrics pay nothing for their
instruments.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import Final, TypeAlias

from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
)

from ... import telemetry

MAX_REQUEST_BYTES: Final = 16_384
MAX_CONNECTIONS: Final = 64
"""Connections at the same time; a further connection closes the oldest, so that no client keeps a probe out."""
TIMEOUT_S: Final = 5.0
"""The time limit of a request and of its answer."""

SHOWN_AS_TOTALS: Final = ("tocsin_instants_missed",)
"""Instruments whose numbers the API exports as totals of the installation, under the same names."""

Missing: TypeAlias = Callable[[], str | None]
"""Returns what this process still lacks to do its work; None: nothing."""

_log = telemetry.get_logger("tocsin.metrics")


@cache
def process_metrics() -> CollectorRegistry | None:
    """Return the registry of this process; None: it has a meter provider of its own."""
    if isinstance(metrics.get_meter_provider(), MeterProvider | NoOpMeterProvider):
        _log.warning("process metrics are off: a meter provider is installed", action="process-metrics-off")
        return None
    disable_created_metrics()  # type: ignore[no-untyped-call] # an extra series for each metric, which no dashboard uses
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    views = [View(instrument_name=name, aggregation=DropAggregation()) for name in SHOWN_AS_TOTALS]
    metrics.set_meter_provider(MeterProvider([reader], resource=Resource({}), views=views))
    build = telemetry.meter().create_gauge(
        "tocsin_build_info", description="1, with the version of Tocsin in the label `version`. Each process has it."
    )
    build.set(1, {"version": version("tocsin")})  # an idle process has no other value, and its page shows what it is
    return registry


@asynccontextmanager
async def serving_process_metrics(listener: socket.socket, missing: Missing) -> AsyncIterator[None]:
    """Answer requests for the metrics and the probes of this process within the block.

    At its end the socket is closed. Without a registry of its own, the process answers the probes only.
    """
    registry = process_metrics()
    open_connections: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections[writer] = None
        if len(open_connections) > MAX_CONNECTIONS:
            oldest = next(iter(open_connections))
            del open_connections[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(request, registry, missing))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or speaks another protocol
        finally:
            open_connections.pop(writer, None)
            writer.close()

    server = await asyncio.start_server(answer, sock=listener, limit=MAX_REQUEST_BYTES)
    async with server:
        yield


def _answer(request: bytes, registry: CollectorRegistry | None, missing: Missing) -> bytes:
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method == b"GET" and path == b"/livez":
        return _response("200 OK", b"ok\n")
    if method == b"GET" and path == b"/readyz":
        reason = missing()
        return _response("200 OK", b"ok\n") if reason is None else _response("503 Service Unavailable", reason.encode())
    if method == b"GET" and path == b"/metrics" and registry is not None:
        return _response("200 OK", generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")
    return _response("404 Not Found", b"")


def _response(status: str, body: bytes, *, media_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
