"""The port on which `tocsin run` and `tocsin worker` serve the metrics of their process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .. import telemetry
from ..adapters.extras import ExtraNotInstalled
from ..adapters.http.sockets import listen, url_of
from ..settings import Settings

_log = telemetry.get_logger("tocsin")


@asynccontextmanager
async def process_metrics_served(settings: Settings) -> AsyncIterator[None]:
    """Serve the metrics of this process within the block if the settings name a port.

    Raises:
        ExtraNotInstalled: the exporter is not installed.
        PortInUseError: the port is taken.
    """
    port = settings.metrics.process_port
    if port is None:
        yield
        return
    try:
        from ..adapters.otel.process_metrics import serving_process_metrics  # noqa: PLC0415 - it needs an extra
    except ImportError:
        raise ExtraNotInstalled("`metrics.process_port`", "metrics") from None
    listener = listen(settings.metrics.process_host, port, setting="metrics.process_port")
    url = f"{url_of(listener)}/metrics"
    async with serving_process_metrics(listener):
        _log.info("process metrics serving", action="process-metrics-serving", url=url)
        yield
