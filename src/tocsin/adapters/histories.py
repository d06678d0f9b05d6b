"""The history behind a URL, whichever technology it names."""

from contextlib import AbstractAsyncContextManager

from ..ports import History
from .redis import open_history as open_redis
from .sql import open_history as open_sql


def open_history(url: str, *, installation: str, max_connections: int) -> AbstractAsyncContextManager[History]:
    """The history in the database of a URL, for as long as the context lasts.

    Raises:
        HistoryUnavailable: the URL, the password, the database or what is in it is not what is needed.
    """
    if url.startswith(("redis://", "rediss://")):
        return open_redis(url, installation=installation, max_connections=max_connections)
    return open_sql(url, installation=installation, max_connections=max_connections)
