"""The history in the memory of this process, which ends with it."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from sqlalchemy import Engine, StaticPool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from .engine import begin, json_options, writing
from .history import SqlHistory
from .migration import upgrade


@asynccontextmanager
async def open_memory_history(*, installation: str = "") -> AsyncIterator[SqlHistory]:
    """Open an empty history in memory, for the duration of the context."""
    history = SqlHistory(empty_engine(), installation=installation, threads=0)
    try:
        yield history
    finally:
        await history.close()


def empty_engine() -> Engine:
    """Return the engine of a new database in memory, with its tables."""
    return _engine(_tables())


@cache
def _tables() -> bytes:
    """Return a database with the tables and without rows."""
    engine = _engine(None)
    try:
        with writing(engine).begin() as transaction:
            upgrade(transaction)
        connection = engine.raw_connection()
        try:
            database = connection.driver_connection
            assert isinstance(database, sqlite3.Connection)  # noqa: S101 - for the type checker
            return database.serialize()
        finally:
            connection.close()
    finally:
        engine.dispose()


def _engine(content: bytes | None) -> Engine:
    """Return the engine of a new database in memory; `content`: a database that it copies."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        if content is not None:
            connection.deserialize(content)
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool, **json_options())
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", begin)
    return engine


def _prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin explicitly
