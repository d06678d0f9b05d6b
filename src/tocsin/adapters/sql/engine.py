"""The database of a URL, set up so that a writer is fast and readers never wait for it."""

from typing import Final

from pydantic_core import from_json, to_json
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

DIALECTS: Final = frozenset({"sqlite", "postgresql"})

BUSY_TIMEOUT: Final = 5.0
"""Seconds that SQLite waits for another process's transaction before it gives up."""


def connect(url: str) -> Engine:
    """The engine of a database, e.g. `sqlite:////var/lib/tocsin/history.db` or `postgresql+psycopg://…`; nothing is opened.

    Raises:
        ValueError: neither SQLite nor PostgreSQL.
        sqlalchemy.exc.ArgumentError: no URL.
    """
    engine = create_engine(url, json_serializer=_dump, json_deserializer=from_json, pool_pre_ping=True)
    if engine.dialect.name not in DIALECTS:
        raise ValueError(f"the history is kept in SQLite or PostgreSQL, not in {engine.dialect.name}")
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _dump(value: object) -> str:
    # PostgreSQL refuses the constants NaN and Infinity, which JSON does not have.
    return to_json(value, inf_nan_mode="null").decode()


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # With NORMAL a power cut may take the last transactions, rows and offset together: they are read from the log again.
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1_000:.0f}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()
