"""The metrics of this process: Tocsin's instruments of OpenTelemetry, in Prometheus' text format.

A process has one meter provider. It is made at the first call, so processes that serve no metrics pay nothing for their
instruments.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Final

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
MAX_CONNECTIONS: Final = 8
"""Connections at the same time; more are closed at once."""
TIMEOUT_S: Final = 5.0
"""The time limit of a request and of its answer."""

SHOWN_AS_TOTALS: Final = ("tocsin_instants_missed",)
"""Instruments whose numbers the API exports as totals of the installation, under the same names."""

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
    return registry


@asynccontextmanager
async def serving_process_metrics(listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests for the metrics of this process within the block, and close the socket."""
    registry = process_metrics()
    if registry is None:
        listener.close()
        yield
        return
    open_connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if open_connections <= MAX_CONNECTIONS:
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_answer(request, registry))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or speaks another protocol
        finally:
            open_connections -= 1
            writer.close()

    server = await asyncio.start_server(answer, sock=listener, limit=MAX_REQUEST_BYTES)
    async with server:
        yield


def _answer(request: bytes, registry: CollectorRegistry) -> bytes:
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method != b"GET" or path != b"/metrics":
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    body = generate_latest(registry)
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
