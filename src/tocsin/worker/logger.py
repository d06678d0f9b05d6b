"""The worker's own log lines; each names its `action`."""

from typing import Final

import structlog

log: Final[structlog.typing.FilteringBoundLogger] = structlog.get_logger("tocsin.worker")
