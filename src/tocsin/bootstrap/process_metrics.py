"""The port of the metrics and the probes of `tocsin run` and `tocsin worker`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from .. import telemetry
from ..adapters.extras import ExtraNotInstalled
from ..adapters.http.sockets import listen, url_of
from ..settings import Settings
from .installation import Installation

_log = telemetry.get_logger("tocsin")


class Readiness:
    """Whether this process does its work: it has started, and is connected to NATS."""

    def __init__(self) -> None:
        """Begin as a process that is not connected yet."""
        self.started = asyncio.Event()
        """Set once the stages or the worker of the process run."""
        self._is_connected: Callable[[], bool] = lambda: False

    def watch(self, installation: Installation) -> None:
        self._is_connected = lambda: installation.connection.client.is_connected

    def watch_nothing(self) -> None:
        """Leave the connection to the code of the worker that opens it."""
        self._is_connected = lambda: True

    def missing(self) -> str | None:
        """Return what the process still lacks; None: it is ready."""
        if not self._is_connected():
            return "not connected to NATS"
        return None if self.started.is_set() else "starting"


@asynccontextmanager
async def process_metrics_served(settings: Settings) -> AsyncIterator[Readiness]:
    """Serve the metrics and the probes of this process within the block.

    Without a port in the settings, serve nothing.
    """
    readiness = Readiness()
    port = settings.metrics.process_port
    if port is None:
        yield readiness
        return
    try:
        from ..adapters.otel.process_metrics import serving_process_metrics  # noqa: PLC0415 - it needs an extra
    except ImportError:
        raise ExtraNotInstalled("`metrics.process_port`", "metrics") from None
    listener = listen(settings.metrics.process_host, port, setting="metrics.process_port")
    url = f"{url_of(listener)}/metrics"
    async with serving_process_metrics(listener, readiness.missing):
        _log.info("process metrics serving", action="process-metrics-serving", url=url)
        yield readiness
