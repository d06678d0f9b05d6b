"""The engine of a database, configured for fast writes and readers that never wait.

Values and statements bypass SQLAlchemy's processing of each value, because recording is where the time goes.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from pydantic_core import from_json
from sqlalchemy import JSON, Column, Connection, Engine, Select, Table, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from ...domain.definition import show
from ...ports import HistoryUrlInvalid
from ..extras import history_extra
from ..history.rows import json_text
from .tables import UuidText

DRIVERS: Final = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""Drivers by URL scheme; a URL that names a driver stays unchanged."""

SCHEMES: Final = frozenset({*DRIVERS, "postgresql+psycopg"})

BUSY_TIMEOUT: Final = 5.0
"""SQLite waits this number of seconds for another process's transaction."""

CONNECT_TIMEOUT: Final = 10
"""The time limit, in seconds, for a connection to PostgreSQL."""

CHECKPOINT: Final = 8_000
"""SQLite collects this number of pages (32 MB) in its write-ahead log before a checkpoint.

The pages of open executions are written many times before.
"""

MAX_FILE_CONNECTIONS: Final = 4
"""Connections to an SQLite file: one writes, the others read."""

CHUNK: Final = 500
"""The number of rows in one request."""

_WRITES: Final = "tocsin_writes"


def connect(url: str, *, max_connections: int = 10) -> Engine:
    """Create the engine of a database, which does not connect yet."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise HistoryUrlInvalid(
            f"`database.url` is {show(scheme)}: the history is kept in `sqlite:///…`, `postgresql://…` or `redis://…`"
        )
    is_file, path = scheme == "sqlite", rest.removeprefix("/").partition("?")[0]
    options: dict[str, Any] = {}
    if is_file:
        _make_folder(path)
    else:
        # A database in SQL_ASCII names no encoding, and the driver would return bytes for texts.
        arguments = {"connect_timeout": CONNECT_TIMEOUT, "application_name": "tocsin", "client_encoding": "utf8"}
        options = {"pool_pre_ping": True, "connect_args": arguments}
    try:
        with history_extra(f"A history in {scheme}"):
            engine = create_engine(
                f"{DRIVERS.get(scheme, scheme)}://{rest}",
                poolclass=QueuePool,
                pool_size=min(max_connections, MAX_FILE_CONNECTIONS) if is_file else max_connections,
                max_overflow=0,
                **json_options(),
                **options,
            )
    except (ArgumentError, ValueError) as error:
        raise HistoryUrlInvalid(f"`database.url` cannot be read: {error}") from None
    if is_file:
        event.listen(engine, "do_connect", lambda *_: _make_file(path))
        event.listen(engine, "connect", _prepare_file)
        event.listen(engine, "begin", begin)
    return engine


def json_options() -> dict[str, Any]:
    """Return the options of an engine that write and read JSON."""
    return {"json_serializer": json_text, "json_deserializer": from_json}


def writing(engine: Engine) -> Engine:
    """Return the engine for write transactions.

    On SQLite they wait for an earlier writer at their beginning, not half-way.
    """
    return engine.execution_options(**{_WRITES: True})


def _make_file(path: str) -> None:
    """Make a missing file for its owner, and take other users' rights from existing files.

    SQLite gives the same rights to its other files. An existing file is not opened: its end would release the locks of SQLite on it.
    """
    if path and not path.startswith((":memory:", "file:")):
        with suppress(OSError):  # SQLite reports what cannot be opened
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        for file in (path, f"{path}-wal", f"{path}-shm"):
            with suppress(OSError):
                if (state := Path(file).stat()).st_uid == os.geteuid():
                    Path(file).chmod(state.st_mode & 0o7700)


def _make_folder(path: str) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HistoryUrlInvalid(f"`database.url` is in a folder that cannot be made: {error}") from None


def _prepare_file(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin explicitly
    # With NORMAL, a power failure may lose the last transactions, rows and offset together; they are read from the
    # log again.
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1_000:.0f}")
    _write_ahead(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
    cursor.close()


def _write_ahead(cursor: DBAPICursor) -> None:
    """Turn the write-ahead log on.

    SQLite itself does not wait here while another process does the same to a new file.
    """
    until = monotonic() + BUSY_TIMEOUT
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > until:
                raise
            sleep(0.02)
        else:
            return


def begin(connection: Connection) -> None:
    """Begin a transaction of SQLite, which may be one of `writing`."""
    is_writing = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _aware(time: datetime | None) -> datetime | None:
    """Return an instant with a zone; without a zone it is in UTC."""
    return None if time is None else time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


@lru_cache(4_096)  # the events of a commit share their time
def _text_of(time: datetime | None) -> str | None:
    aware = _aware(time)
    return None if aware is None else aware.isoformat(" ", "microseconds")[:-6]


@dataclass(frozen=True)
class Encoding:
    """The encoding of values for the driver of a dialect."""

    dialect: str

    @cached_property
    def is_file(self) -> bool:
        """SQLite, which has no type for times."""
        return self.dialect == "sqlite"

    @cached_property
    def time(self) -> Callable[[datetime | None], object]:
        """Encodes an instant or None; without a zone it is in UTC."""
        return _text_of if self.is_file else _aware

    def values(self, columns: Mapping[str, object], names: Iterable[str]) -> tuple[object, ...]:
        """Return the values of some columns for a statement, in the order of their names."""
        values = (columns[name] for name in names)
        return tuple(self.time(value) if isinstance(value, datetime) else value for value in values)

    def into(self, table: Table, columns: Sequence[str]) -> str:
        values = ", ".join(self._placeholder(table, name) for name in columns)
        return f"INSERT INTO {table.name} ({_named(columns)}) VALUES ({values})"  # noqa: S608 - our own names

    def upsert(self, table: Table, columns: Sequence[str], key: str) -> str:
        """Return a statement that inserts a row, or updates the row of the same key."""
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in {"id", key})
        return f'{self.into(table, columns)} ON CONFLICT ("{key}") DO UPDATE SET {changes}'

    def add(self, table: Table, key: Sequence[str]) -> str:
        """Return a statement that adds a `total` to the row of a key."""
        total = f"total = {table.name}.total + excluded.total"
        return f"{self.into(table, (*key, 'total'))} ON CONFLICT ({_named(key)}) DO UPDATE SET {total}"

    def update(self, table: Table, columns: Sequence[str], *key: str) -> str:
        """Return a statement that sets columns of the row of a key.

        The key is its last values. The indexes of all other columns stay untouched, whereas an upsert rewrites every
        index of the row.
        """
        changes = ", ".join(f'"{name}" = {self._placeholder(table, name)}' for name in columns)
        same = " AND ".join(f'"{name}" = {self._placeholder(table, name)}' for name in key)
        return f"UPDATE {table.name} SET {changes} WHERE {same}"  # noqa: S608 - our own names

    def insert(self, table: Table, columns: Sequence[str]) -> str:
        """Return a statement that inserts a row unless it exists."""
        return f"{self.into(table, columns)} ON CONFLICT DO NOTHING"

    def _placeholder(self, table: Table, column: str) -> str:
        if self.is_file:
            return "?"
        kind = table.c[column].type
        return "%s::jsonb" if isinstance(kind, JSON) else "%s::uuid" if kind is UuidText else "%s"


def _named(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def read_rows(connection: Connection, rows: Select[Any], key: Column[Any], names: Iterable[str]) -> Iterator[Any]:
    """Yield the rows of some keys; databases limit the parameters of a statement."""
    rest = iter(names)
    while chunk := list(islice(rest, CHUNK)):
        yield from connection.execute(rows.where(key.in_(chunk)))


def write_rows(connection: Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Run a statement for each row, if there are any."""
    if rows:
        connection.exec_driver_sql(statement, [*rows])
