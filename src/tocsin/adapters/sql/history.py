"""`ports.History` in a SQL database. Every call is one transaction in the one thread that owns the connection."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.schema import CreateIndex, CreateTable

from ...domain.events import Message, Recorded
from ...listing import EVERY_DEAD_LETTER, EVERY_EXECUTION, DeadLetterQuery, ExecutionQuery, Page
from ...ports import DeadLetterRow, ExecutionRow
from ...subjects import Stream
from . import queries
from .engine import connect
from .recording import record
from .tables import metadata

T = TypeVar("T")


class SqlHistory:
    """The history behind an engine (`engine.connect`).

    Besides what the port says, a method raises `sqlalchemy.exc.SQLAlchemyError` when the database does not do as asked;
    nothing is stored then, unless the connection broke at the very commit: ask for the offset.
    """

    def __init__(self, engine: Engine, *, installation: str = "") -> None:
        """`installation` names the one whose streams are recorded."""
        self._engine = engine
        self._installation = installation
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tocsin-history")

    async def create_tables(self) -> None:
        """Create the tables and indexes that are not there."""
        await self._transaction(_create_tables)

    async def close(self) -> None:
        """Let go of the database, after what was asked before is done."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown()

    async def offset(self, stream: Stream) -> int:
        """See `ports.History`."""
        return await self._transaction(partial(queries.offset, installation=self._installation, stream=stream))

    async def record(self, stream: Stream, messages: Sequence[Recorded[Message]], *, after: int, upto: int) -> None:
        """See `ports.History`. When cancelled, the transaction may still be committed."""
        await self._transaction(
            partial(record, installation=self._installation, stream=stream, messages=messages, after=after, upto=upto)
        )

    async def executions(self, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
        """See `ports.History`."""
        return await self._transaction(partial(queries.executions, query=query))

    async def count(self, query: ExecutionQuery = EVERY_EXECUTION) -> int:
        """See `ports.History`."""
        return await self._transaction(partial(queries.count, query=query))

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """See `ports.History`."""
        return await self._transaction(partial(queries.execution, execution_id=execution_id))

    async def dead_letters(self, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
        """See `ports.History`."""
        return await self._transaction(partial(queries.dead_letters, query=query))

    async def _transaction(self, work: Callable[[Connection], T]) -> T:
        def committed() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, committed)


@asynccontextmanager
async def open_history(url: str, *, installation: str = "") -> AsyncIterator[SqlHistory]:
    """The history in the database of a URL, with its tables, for as long as the context lasts.

    The places that it keeps are those of one installation: it may be pointed at another NATS, or at a NATS that began anew,
    and then records that from its beginning.

    Raises:
        ValueError: neither SQLite nor PostgreSQL.
        sqlalchemy.exc.SQLAlchemyError: the database cannot be reached.
    """
    history = SqlHistory(connect(url), installation=installation)
    try:
        await history.create_tables()
        yield history
    finally:
        await history.close()


def _create_tables(connection: Connection) -> None:
    # Not `metadata.create_all`, which looks first and creates then: two processes that start at once would collide.
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index, if_not_exists=True))
