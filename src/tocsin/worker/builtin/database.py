"""A transaction in a database, in a thread, which can be cancelled.

Each attempt has a connection of its own, so that nothing that a statement leaves in its session reaches another job.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ..builtin_call import BuiltinFailure
from ..handler_runner import Threads
from ..results import TIMED_OUT

T = TypeVar("T")

Check: TypeAlias = Callable[[], None]

CONNECTION_FAILED: Final = "sql_connection_failed"
MAX_REASON: Final = 1_024
"""Characters of a database's message that an error message has."""
_CONNECT_TIMEOUT_S: Final = 10
_SQLITE_BUSY_S: Final = 5.0
_CANCEL_WITHIN_S: Final = 5.0
"""Seconds for the request that cancels a statement."""
_CANCEL_INTERVAL_S: Final = 0.5
"""Seconds between two such requests."""
_END_WITHIN_S: Final = 10.0
"""Seconds for the end of a cancelled transaction. Then its thread is left alone, as is that of a handler."""
_SQLITE_VALUE_BYTES: Final = 134_217_728
"""Bytes of a value in SQLite. By default a short statement makes one of 1 GB, several times in memory."""
_PRAGMAS: Final = frozenset(
    {
        *("application_id", "user_version", "integrity_check", "quick_check", "optimize", "incremental_vacuum"),
        *("foreign_keys", "defer_foreign_keys", "foreign_key_check", "foreign_key_list"),
        *("table_info", "table_xinfo", "table_list"),
        *("index_info", "index_xinfo", "index_list", "database_list", "collation_list", "encoding", "page_count"),
        *("page_size", "freelist_count", "data_version", "recursive_triggers", "case_sensitive_like", "query_only"),
    }
)
"""The `PRAGMA`s of a statement: they concern its own database and connection alone. Others change settings of the worker's process,
such as `hard_heap_limit`, or the file below other connections, such as `journal_mode` and `writable_schema`."""
_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "sqlite": "sqlite+pysqlite"}
_RETRYABLE_STATES: Final = ("08", "40", "53", "55P03", "57P", "58")
"""Beginnings of SQLSTATEs of failures that another attempt may not have: connection, serialization and deadlock, resources, a
lock, the end of the server, the system."""
_STATEMENT_TIMEOUT: Final = "57014"
_RETRYABLE_SQLITE: Final = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_INTERRUPT",
    "SQLITE_IOERR",
    "SQLITE_FULL",
    "SQLITE_CANTOPEN",
)


class Database:
    """A database of the settings."""

    def __init__(self, name: str, url: str, threads: Threads) -> None:
        scheme, _, rest = url.partition("://")
        self.name = name
        self.is_sqlite = scheme == "sqlite"
        options: dict[str, Any] = {"timeout": _SQLITE_BUSY_S}
        if not self.is_sqlite:
            options = {"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": "tocsin"}
            if "client_encoding" not in rest.partition("?")[2]:
                # A database in SQL_ASCII names no encoding, and the driver would return bytes for texts.
                options["client_encoding"] = "utf8"
        self._engine = create_engine(
            f"{_DRIVERS[scheme]}://{rest}", poolclass=NullPool, hide_parameters=True, connect_args=options
        )
        if self.is_sqlite:
            _prepare_sqlite(self._engine)
        self._threads = threads

    async def transaction(self, work: Callable[[Connection, Check], T], redact: Callable[[str], str]) -> T:
        """Run work in a transaction, in a thread.

        Work calls its second argument between statements, which raises if the attempt was cancelled. `redact` replaces secrets.
        A cancellation cancels the statement that runs, and waits until the transaction is rolled back.
        """
        running = _Running(self._engine, work)
        future: Future[Any] = self._threads.submit(running)
        try:
            result: T = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            await self._cancel(running, future)
            raise
        except SQLAlchemyError as error:
            raise self._failure(error, redact) from None
        return result

    async def _cancel(self, running: "_Running", future: "Future[Any]") -> None:
        if future.cancelled():
            return  # it had not begun
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_WITHIN_S):
                while not running.ended.is_set():
                    self._threads.submit(running.cancel)  # again, because it may come between two statements
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_CANCEL_INTERVAL_S):
                            await running.ended.wait()

    def _failure(self, error: SQLAlchemyError, redact: Callable[[str], str]) -> BuiltinFailure:
        """Return the failure of a statement.

        Its parameters are not in it, and its message may quote a part of them. So secrets are replaced before it is cut: a
        part of a secret would not be found.
        """
        cause = error.orig if isinstance(error, DBAPIError) else error
        state = getattr(cause, "sqlstate", None)
        sqlite_name = getattr(cause, "sqlite_errorname", None)
        diagnosis = getattr(getattr(cause, "diag", None), "message_primary", None)
        message = f"{self.name}: {redact(str(diagnosis or cause).strip())[:MAX_REASON]}"
        if state == _STATEMENT_TIMEOUT:
            return BuiltinFailure(TIMED_OUT, message)
        if state is not None:
            return BuiltinFailure(f"sql_state_{state}", message, retryable=state.startswith(_RETRYABLE_STATES))
        if sqlite_name is not None:
            return BuiltinFailure(sqlite_name.lower(), message, retryable=sqlite_name.startswith(_RETRYABLE_SQLITE))
        if isinstance(error, DBAPIError) and type(error).__name__ in {"OperationalError", "InterfaceError"}:
            return BuiltinFailure(CONNECTION_FAILED, message)
        return BuiltinFailure("sql_failed", message, retryable=False)


class _Running:
    """A transaction in a thread."""

    def __init__(self, engine: Engine, work: Callable[[Connection, Check], Any]) -> None:
        self._engine = engine
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._driver: Any = None
        self._is_cancelled = False
        self.ended = asyncio.Event()

    def __call__(self) -> Any:  # noqa: ANN401 - the result of the work
        try:
            with self._engine.connect() as connection:
                return self._in_transaction(connection)
        finally:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.ended.set)

    def cancel(self) -> None:
        """Cancel the statement that runs, and all that would follow."""
        with self._lock:
            self._is_cancelled = True
            driver = self._driver
            if isinstance(driver, sqlite3.Connection):
                driver.interrupt()
            elif driver is not None:
                with suppress(Exception):  # the statement has ended, or its timeout ends it
                    driver.cancel_safe(timeout=_CANCEL_WITHIN_S)

    def _in_transaction(self, connection: Connection) -> Any:  # noqa: ANN401
        transaction = connection.begin()
        try:
            with self._lock:
                self._driver = connection.connection.dbapi_connection
            self._check()
            result = self._work(connection, self._check)
            self._check()
        except BaseException:
            try:
                transaction.rollback()
            except SQLAlchemyError:  # the statement left the connection in another state, as COPY does
                connection.invalidate()
            raise
        finally:
            with self._lock:
                self._driver = None
        transaction.commit()
        return result

    def _check(self) -> None:
        """Roll back if the attempt was cancelled."""
        with self._lock:
            if self._is_cancelled:
                raise BuiltinFailure("cancelled", "the attempt was cancelled")


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def prepare(driver: sqlite3.Connection, _: object) -> None:
        driver.isolation_level = None  # a transaction begins with BEGIN alone
        driver.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # a statement reaches no other file
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SQLITE_VALUE_BYTES)
        driver.set_authorizer(_authorize)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def _authorize(action: int, name: str | None, *_: object) -> int:
    """Refuse what would change more than a statement's own database."""
    is_refused = action == sqlite3.SQLITE_PRAGMA and (name or "").lower() not in _PRAGMAS
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK
