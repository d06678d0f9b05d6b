"""The history of a database URL, in SQL or Redis, and their shared parts.

Most processes have no history, and none has two. A database client is therefore imported only when it is needed;
importing both would make a start a third slower.
"""

from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

from ...ports import History
from ..extras import history_extra


def open_history(url: str, *, installation: str, max_connections: int) -> AbstractAsyncContextManager[History]:
    """Open the history in the database of a URL, or raise `HistoryUnavailable`."""
    is_redis = url.startswith(("redis://", "rediss://"))
    with history_extra("A history in Redis" if is_redis else "The history"):
        if is_redis:
            from ..redis.history import open_history as open_redis  # noqa: PLC0415

            return open_redis(url, installation=installation, max_connections=max_connections)
        from ..sql.history import open_history as open_sql  # noqa: PLC0415

        return open_sql(url, installation=installation, max_connections=max_connections)


def without_credentials(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme.partition('+')[0]}://{parts.hostname or ''}{port}{parts.path}"
