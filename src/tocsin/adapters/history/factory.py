"""The history behind a URL, whichever technology it names.

Most processes have no history, and none has two: a database's client is imported by whoever needs it. With both a start
would take a third longer.
"""

from contextlib import AbstractAsyncContextManager

from ...ports import History
from ..extras import history_extra


def open_history(url: str, *, installation: str, max_connections: int) -> AbstractAsyncContextManager[History]:
    """The history in the database of a URL, for as long as the context lasts.

    Raises:
        HistoryUnavailable: the URL, the password, the database or what is in it is not what is needed.
    """
    is_redis = url.startswith(("redis://", "rediss://"))
    with history_extra("A history in Redis" if is_redis else "The history"):
        if is_redis:
            from ..redis import open_history as open_redis  # noqa: PLC0415

            return open_redis(url, installation=installation, max_connections=max_connections)
        from ..sql import open_history as open_sql  # noqa: PLC0415

        return open_sql(url, installation=installation, max_connections=max_connections)
