"""Implementation of `ports.History` in a SQL database."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Select,
    StaticPool,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    select,
    tuple_,
)
from sqlalchemy.exc import IntegrityError

from ...domain.events import Message, Recorded
from ...domain.execution_counts import count_key
from ...domain.totals import Total
from ...ports import (
    DeadLetterRow,
    Encoded,
    ExecutionRow,
    HistoryUnavailable,
    JobRow,
    KeptEvents,
    KeptPart,
)
from ...ports.queries import (
    EVERY_DEAD_LETTER,
    EVERY_EXECUTION,
    DeadLetterQuery,
    ExecutionQuery,
    Page,
    Place,
    microseconds,
)
from ...subjects import Stream
from ..history.rows import letter_id_of
from . import counts as kept_counts
from . import events as kept_events
from . import tables, totals
from .batch_writer import BatchWriter
from .counts import COUNTED, CountsWriter, expire_passed
from .engine import Encoding, begin, connect, json_options, writing
from .migration import migrate, upgrade
from .rows import Row, dead_letter_row, execution_row, job_row
from .summaries import SqlSummaries, reading
from .tables import dead_letter_conditions, execution_conditions

_EXECUTIONS: Final = tables.executions.c
_DEAD_LETTERS: Final = tables.dead_letters.c
_TAGS: Final = tables.execution_tags.c
_JOBS: Final = tables.jobs.c
_PASSED: Final = tables.passed.c

ORDERS: Final[dict[str, tuple[Column[Any], bool]]] = {
    "newest": (_EXECUTIONS.scheduled_time, True),
    "oldest": (_EXECUTIONS.scheduled_time, False),
    "last-started": (_EXECUTIONS.started_at, True),
    "first-started": (_EXECUTIONS.started_at, False),
    "longest": (_EXECUTIONS.duration_ms, True),
    "shortest": (_EXECUTIONS.duration_ms, False),
}
"""The column and the direction of each order."""

EXPIRED_AT_ONCE: Final = 1_000
"""The limit of executions that a transaction removes."""


def executions(connection: Connection, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
    column, is_downwards = ORDERS[query.sort]
    key, time = _EXECUTIONS.execution_id, _EXECUTIONS.scheduled_time
    statement = select(tables.executions)
    if query.tag is not None:
        statement = statement.join(tables.execution_tags, key == _TAGS.execution_id).where(_TAGS.tag == query.tag)
        # They have the order of a list by scheduled time, too.
        key, time = _TAGS.execution_id, _TAGS.scheduled_time
        column = time if column is _EXECUTIONS.scheduled_time else column
    statement = statement.where(*execution_conditions(query, time))
    if column is _EXECUTIONS.duration_ms:
        statement = statement.where(column.is_not(None))
    statement = _after_place(statement, query.place, column, key, is_downwards=is_downwards)
    rows = connection.execute(statement.limit(query.limit + 1)).all()
    return Page(
        [execution_row(row) for row in rows[: query.limit]],
        _cursor(rows, query, column.name, "execution_id"),
    )


def count(connection: Connection, query: ExecutionQuery = EVERY_EXECUTION) -> int:
    statement = (
        select(func.count())
        .select_from(tables.executions)
        .where(*execution_conditions(query, _EXECUTIONS.scheduled_time))
    )
    if query.tag is not None:
        tagged = select(_TAGS.execution_id).where(_TAGS.tag == query.tag)
        statement = statement.where(_EXECUTIONS.execution_id.in_(tagged))
    return connection.execute(statement).scalar_one()


def execution(connection: Connection, execution_id: str) -> ExecutionRow | None:
    """Return an execution, or None if the history does not have it."""
    row = connection.execute(select(tables.executions).where(_EXECUTIONS.execution_id == execution_id)).one_or_none()
    return None if row is None else execution_row(row)


def dead_letters(connection: Connection, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
    statement = select(tables.dead_letters).where(*dead_letter_conditions(query))
    is_downwards = query.sort == "newest"
    statement = _after_place(
        statement, query.place, _DEAD_LETTERS.last_attempt, _DEAD_LETTERS.letter_id, is_downwards=is_downwards
    )
    rows = connection.execute(statement.limit(query.limit + 1)).all()
    return Page(
        [dead_letter_row(row) for row in rows[: query.limit]],
        _cursor(rows, query, "last_attempt", "letter_id"),
        [Place(query.sort, microseconds(row.last_attempt), row.letter_id) for row in rows[: query.limit]],
    )


def jobs(connection: Connection) -> Sequence[JobRow]:
    return [job_row(row) for row in connection.execute(select(tables.jobs).order_by(tables.jobs.c.job_name))]


def expire(connection: Connection, *, now: datetime, after: timedelta) -> int:
    """Remove up to `EXPIRED_AT_ONCE` executions, and as many resolved dead letters, whose retention is over."""
    retentions = connection.execute(select(_JOBS.job_name, _JOBS.retention).where(_JOBS.retention.is_not(None)))
    cutoffs = {job: now - timedelta(seconds=seconds) for job, seconds in retentions}
    of_jobs = [(cutoff, _EXECUTIONS.job_name == job) for job, cutoff in cutoffs.items()]
    removed, writer = 0, CountsWriter(Encoding(connection.dialect.name))
    for cutoff, condition in [(now - after, _EXECUTIONS.job_name.not_in(cutoffs)), *of_jobs]:
        # Limit the scheduled time too: it has an index, and ended executions were scheduled before.
        old = (_EXECUTIONS.scheduled_time < cutoff, _EXECUTIONS.completed_at < cutoff)
        statement = select(_EXECUTIONS.execution_id, _EXECUTIONS.occurrence_id, *COUNTED).where(*old, condition)
        expired: Any = connection.execute(statement.limit(EXPIRED_AT_ONCE - removed)).all()
        ids = [row.execution_id for row in expired]
        for table in (tables.executions, tables.execution_tags):
            connection.execute(delete(table).where(table.c.execution_id.in_(ids)))
        # A fan-out has one event under an id without a row, which its executions name.
        kept_events.forget_executions(connection, {*ids, *filter(None, (row.occurrence_id for row in expired))})
        kept_events.forget_times(connection, {row.job for row in expired}, cutoff)
        gone = Counter(filter(None, map(count_key, expired)))  # an ended row has the fields that a count has
        writer.change(connection, {key: -count for key, count in gone.items()})
        removed += len(expired)
        if removed == EXPIRED_AT_ONCE:
            break
    spans = expire_passed(connection, now - after, _PASSED.job_name.not_in(cutoffs), limit=EXPIRED_AT_ONCE)
    for job, cutoff in cutoffs.items():
        spans += expire_passed(connection, cutoff, _PASSED.job_name == job, limit=EXPIRED_AT_ONCE)
    letters = select(_DEAD_LETTERS.letter_id).where(_DEAD_LETTERS.resolved, _DEAD_LETTERS.last_attempt < now - after)
    resolved = connection.execute(letters.limit(EXPIRED_AT_ONCE)).scalars().all()
    connection.execute(delete(tables.dead_letters).where(_DEAD_LETTERS.letter_id.in_(resolved)))
    kept_events.forget_executions(connection, {*map(letter_id_of, resolved)})
    if not (removed or resolved or spans):
        totals.forget_jobs(connection)
    return removed + len(resolved) + spans


def forget(connection: Connection) -> None:
    """Delete all rows; keep the places up to which totals are incomplete."""
    places = totals.former_places(connection)
    for table in tables.metadata.sorted_tables:
        connection.execute(delete(table))
    if places:
        connection.execute(insert(tables.totals), places)


def _after_place(
    statement: Select[Any], place: Place | None, column: Column[Any], key: Column[Any], *, is_downwards: bool
) -> Select[Any]:
    """Restrict a query to the rows after a place, sorted by `column` and id."""
    if place is not None:
        is_duration = column is _EXECUTIONS.duration_ms
        value = literal(place.key, BigInteger) if is_duration else literal(place.time, column.type)
        position = tuple_(value, literal(place.id, key.type))
        statement = statement.where(tuple_(column, key) < position if is_downwards else tuple_(column, key) > position)
    return statement.order_by(column.desc(), key.desc()) if is_downwards else statement.order_by(column, key)


def _cursor(rows: Sequence[Row], query: ExecutionQuery | DeadLetterQuery, column: str, key: str) -> str | None:
    if len(rows) <= query.limit:
        return None
    last = rows[query.limit - 1]
    value = getattr(last, column)
    return Place(query.sort, value if isinstance(value, int) else microseconds(value), getattr(last, key)).cursor


T = TypeVar("T")


class SqlHistory:
    """The history of an engine (`engine.connect`), whose tables `migration.migrate` created.

    A method may also raise `sqlalchemy.exc.SQLAlchemyError`. Then nothing is stored, unless the connection broke during
    the commit; compare the offset.
    """

    def __init__(self, engine: Engine, *, installation: str = "", threads: int = 4) -> None:
        """Record the streams of `installation`, in threads; 0: in the caller's thread."""
        self._engine = engine
        self._writing = writing(engine)
        self._installation = installation
        self._recording = BatchWriter(installation, engine.dialect.name)
        self._file = DatabaseFile(engine)
        self._threads = threads and ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tocsin-history")
        self.summaries = SqlSummaries(self.read, installation)
        """See `ports.History`."""

    async def close(self) -> None:
        """Close the database after all pending calls."""
        if self._threads:
            await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    async def offset(self, stream: Stream) -> int:
        return await self.read(partial(kept_events.offset, installation=self._installation, stream=stream))

    async def record(
        self,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),
    ) -> None:
        """See `ports.History`. If it is cancelled, the transaction may still be committed."""

        def committed() -> None:
            recording = self._recording
            write = partial(
                recording.record,
                stream=stream,
                messages=messages,
                after=after,
                upto=upto,
                opens=opens,
                encoded=encoded,
            )
            try:
                try:
                    _result(self._writing.begin, write)
                except IntegrityError:  # another job, or the same in another installation, has an execution of an id
                    _result(self._writing.begin, partial(write, reads_all=True))
            except BaseException:
                recording.cache.forget(stream)
                raise
            recording.cache.committed(stream, upto)

        await self._in_thread(committed)

    executions = reading(executions)
    count = reading(count)
    execution = reading(execution)
    dead_letters = reading(dead_letters)
    counts = reading(kept_counts.counts)
    passed = reading(kept_counts.passed)
    durations = reading(kept_counts.durations)
    jobs = reading(jobs)

    async def totals(self) -> Mapping[Total, int] | None:
        return await self.read(partial(totals.read, installation=self._installation))

    async def events(
        self, part: KeptPart, *, after: int = 0, since: datetime | None = None, limit: int | None = None
    ) -> KeptEvents:
        reading = partial(kept_events.events, part=part, installation=self._installation)
        return await self.read(partial(reading, after=after, since=since, limit=limit))

    async def newest(self, part: KeptPart) -> KeptEvents:
        return await self.read(partial(kept_events.newest, part=part, installation=self._installation))

    async def expire(self, now: datetime, *, after: timedelta) -> int:
        return await self._write(partial(expire, now=now, after=after))

    async def forget(self) -> None:
        """See `ports.History`. The offsets of other installations in the same database are removed too."""
        await self._write(forget)

    async def read(self, query: Callable[[Connection], T], /) -> T:
        """Return the result of a query, in a thread of the history."""
        return await self._in_thread(partial(_result, self._engine.connect, query))

    async def _write(self, change: Callable[[Connection], T]) -> T:
        return await self._in_thread(partial(_result, self._writing.begin, change))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def checked() -> T:
            self._file.check(self._begin_again)
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, checked) if self._threads else checked()

    def _begin_again(self) -> None:
        self._recording = BatchWriter(self._installation, self._engine.dialect.name)


def _result(connect: Callable[[], AbstractContextManager[Connection]], query: Callable[[Connection], T]) -> T:
    with connect() as connection:
        return query(connection)


@asynccontextmanager
async def open_history(url: str, *, installation: str = "", max_connections: int = 10) -> AsyncIterator[SqlHistory]:
    """Open the history in the database of a URL, for the duration of the context.

    The offsets belong to one installation: with another or an empty NATS, the history records that from its beginning.
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


class DatabaseFile:
    """Watches the file of an SQLite database, which may be removed while open.

    Connections to a removed file go on in a file without a name, which no other process sees.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        name = engine.url.database
        self._path = Path(name) if engine.dialect.name == "sqlite" and name and name != ":memory:" else None
        self._number = self._present()
        self._making = Lock()

    def check(self, begin_again: Callable[[], None]) -> None:
        """Open the present file if it is another; make a missing one.

        Raises:
            HistoryUnavailable: it is another. The next call finds its content, and its own offset.
        """
        if self._present() == self._number:
            return
        with self._making:
            if self._present() == self._number:  # another thread was here
                return
            self._engine.dispose()
            migrate(self._engine)
            begin_again()
            self._number = self._present()
        raise HistoryUnavailable(
            f"{self._path} was removed or replaced; the history continues from the file's own place"
        )

    def _present(self) -> int | None:
        try:
            return None if self._path is None else self._path.stat().st_ino
        except OSError:
            return None


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
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)  # `begin` begins
        if content is not None:
            connection.deserialize(content)
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool, **json_options())
    event.listen(engine, "begin", begin)
    return engine
