"""Implementation of `ports.History` in a SQL database.

Every call is one transaction, in one of the threads that own the connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine

from ...domain.events import Message, Recorded
from ...ports import DeadLetterRow, ExecutionRow, JobRow
from ...ports.queries import EVERY_DEAD_LETTER, EVERY_EXECUTION, DeadLetterQuery, ExecutionQuery, Page
from ...subjects import Stream
from . import queries
from .batch_writer import BatchWriter
from .engine import connect, writing
from .migration import migrate

T = TypeVar("T")


class SqlHistory:
    """The history of an engine (`engine.connect`), whose tables `migration.migrate` created.

    A method may also raise `sqlalchemy.exc.SQLAlchemyError`. Then nothing is stored, unless the connection broke during
    the commit; compare the offset.
    """

    def __init__(self, engine: Engine, *, installation: str = "", threads: int = 4) -> None:
        """Record the streams of `installation`."""
        self._engine = engine
        self._writing = writing(engine)
        self._installation = installation
        self._recording = BatchWriter(installation, engine.dialect.name)
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tocsin-history")

    async def close(self) -> None:
        """Close the database after all pending calls."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    async def offset(self, stream: Stream) -> int:
        """See `ports.History`."""
        return await self._read(partial(queries.offset, installation=self._installation, stream=stream))

    async def record(self, stream: Stream, messages: Sequence[Recorded[Message]], *, after: int, upto: int) -> None:
        """See `ports.History`. If it is cancelled, the transaction may still be committed."""

        def committed() -> None:
            recording = self._recording
            try:
                with self._writing.begin() as connection:
                    recording.record(connection, stream=stream, messages=messages, after=after, upto=upto)
            except BaseException:
                recording.cache.forget(stream)
                raise
            recording.cache.committed(stream, upto)

        await self._in_thread(committed)

    async def executions(self, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
        """See `ports.History`."""
        return await self._read(partial(queries.executions, query=query))

    async def count(self, query: ExecutionQuery = EVERY_EXECUTION) -> int:
        """See `ports.History`."""
        return await self._read(partial(queries.count, query=query))

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """See `ports.History`."""
        return await self._read(partial(queries.execution, execution_id=execution_id))

    async def dead_letters(self, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
        """See `ports.History`."""
        return await self._read(partial(queries.dead_letters, query=query))

    async def jobs(self) -> Sequence[JobRow]:
        """See `ports.History`."""
        return await self._read(queries.jobs)

    async def expire(self, now: datetime, *, after: timedelta) -> int:
        """See `ports.History`."""

        def committed() -> int:
            with self._writing.begin() as connection:
                return queries.expire(connection, now=now, after=after)

        return await self._in_thread(committed)

    async def forget(self) -> None:
        """See `ports.History`. The offsets of other installations in the same database are removed too."""

        def committed() -> None:
            with self._writing.begin() as connection:
                queries.forget(connection)

        await self._in_thread(committed)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        def result() -> T:
            with self._engine.connect() as connection:
                return query(connection)

        return await self._in_thread(result)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


@asynccontextmanager
async def open_history(url: str, *, installation: str = "", max_connections: int = 10) -> AsyncIterator[SqlHistory]:
    """Open the history in the database of a URL, for the duration of the context.

    The offsets belong to one installation: if the database is used with another NATS, or with an empty NATS, the
    history records that from its beginning.

    Raises:
        HistoryUnavailable: the URL or the password is wrong, the database does not answer, or its content is not
            usable.
    """
    engine = connect(url, max_connections=max_connections)
    try:
        await asyncio.to_thread(migrate, engine)
    except BaseException:
        engine.dispose()
        raise
    history = SqlHistory(engine, installation=installation, threads=max_connections)
    try:
        yield history
    finally:
        await history.close()
