"""Optional dependencies, and the error when an extra is missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from ..domain.errors import TocsinError
from ..ports import HistoryUnavailable

MODULES: Final = {
    "aiohttp": "container",
    "aiosmtplib": "notify",
    "alembic": "server",
    "apprise": "notify",
    "cel_expr_python": "server",
    "fastapi": "server",
    "faststream": "server",
    "grpc": "grpc",
    "grpc_health": "grpc",
    "grpc_reflection": "grpc",
    "holidays": "calendars",
    "httptools": "server",
    "icalendar": "calendars",
    "jwt": "server",
    "kubernetes": "container",
    "prometheus_client": "server",
    "obstore": "s3",
    "psycopg": "postgres",
    "recurring_ical_events": "calendars",
    "redis": "redis",
    "sqlalchemy": "server",
    "starlette": "server",
    "textual": "terminal",
    "uvicorn": "server",
    "watchfiles": "reload",
}
"""The extra of each optional module."""


class ExtraNotInstalled(TocsinError):
    """A part of Tocsin needs an extra that is not installed."""

    code = "extra-not-installed"

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(
            f"{part} needs the extra \"{extra}\". Install it with: pip install 'tocsin[{extra}]', "
            f"or in a source checkout: pip install -e '.[{extra}]'"
        )
        self.part = part
        self.extra = extra


class HistoryExtraNotInstalled(ExtraNotInstalled, HistoryUnavailable):
    """The history needs a database client that is not installed."""

    code = "extra-not-installed"


def extra_of(error: ImportError) -> str | None:
    """Return the extra that installs the module of a failed import, or None."""
    return MODULES.get((error.name or "").partition(".")[0])


def require_extra(part: str, extra: str) -> None:
    """Check that every module of an extra is installed, without importing any."""
    if not is_installed(extra):
        raise ExtraNotInstalled(part, extra)


def is_installed(extra: str) -> bool:
    """Return whether every module of an extra is installed, without importing any."""
    return all(find_spec(module) is not None for module, name in MODULES.items() if name == extra)


def is_redis_error(error: Exception) -> bool:
    """Report whether the Redis client raised an error; without the client none is."""
    client = sys.modules.get("redis.exceptions")
    return client is not None and isinstance(error, client.RedisError)


@contextmanager
def history_extra(part: str) -> Iterator[None]:
    """Report a failed import of a database client as a history that cannot be used."""
    try:
        yield
    except ImportError as error:
        if extra := extra_of(error):
            raise HistoryExtraNotInstalled(part, extra) from None
        raise
