"""Tocsin: an event-driven distributed job scheduler over NATS JetStream.

    from tocsin import Client, Context, Tocsin, Worker

They are imported when first used, so that `import tocsin.domain` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .app import Tocsin
    from .client import Client, Run, SyncClient
    from .worker import Connection, Context, NonRetryableError, Worker
    from .worker.connection import Options

__all__ = ["Client", "Context", "NonRetryableError", "Run", "SyncClient", "Tocsin", "Worker", "__version__"]
__version__: Final = "0.1.0"
_MODULES: Final = {
    "Client": "client",
    "Context": "worker",
    "NonRetryableError": "worker",
    "Run": "client",
    "SyncClient": "client",
    "Tocsin": "app",
    "Worker": "worker",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import worker  # noqa: PLC0415

    worker.Worker.connect_by_default = staticmethod(_connect)
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _connect(options: "Options") -> "AbstractAsyncContextManager[Connection]":
    from .bootstrap import connect_worker  # noqa: PLC0415

    return connect_worker(options)
