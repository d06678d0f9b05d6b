"""Implementation of `ports.summaries` in a SQL database."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, Text, bindparam, case, func, literal, select, tuple_, type_coerce

from ...domain.execution_record import Status
from ...ports.queries import DeadLetterQuery
from ...ports.summaries import (
    ENDED,
    MAX_ERROR,
    MAX_STREAK,
    End,
    EndCounts,
    ExecutionHead,
    JobRuns,
    LetterGroups,
    QueueCounts,
    Streak,
)
from ..history.ends import counted
from . import tables
from .conditions import within
from .letter_groups import letter_groups
from .rows import execution_head
from .runs import runs

T = TypeVar("T")

_EXECUTIONS: Final = tables.executions.c
_HEAD: Final = (
    *(_EXECUTIONS.job_name, _EXECUTIONS.execution_id, _EXECUTIONS.trigger, _EXECUTIONS.status),
    *(_EXECUTIONS.scheduled_time, _EXECUTIONS.started_at, _EXECUTIONS.completed_at, _EXECUTIONS.duration_ms),
    *(_EXECUTIONS.definition, func.substr(_EXECUTIONS.error, 1, MAX_ERROR).label("error")),
)
_MINUTE_TEXT: Final = 16
"""Characters of a time in SQLite up to its minute."""
_NEWEST_OF: Final = (
    select(*_HEAD)
    .where(_EXECUTIONS.job_name == bindparam("job"))
    .order_by(_EXECUTIONS.scheduled_time.desc(), _EXECUTIONS.execution_id.desc())
    .limit(bindparam("most"))
)


class Reader(Protocol):
    """Runs a query in a thread of the history."""

    def __call__(self, query: Callable[[Connection], T], /) -> Awaitable[T]:
        """Return the result of a query."""
        ...


class SqlSummaries:
    """The summaries of a history in a SQL database."""

    def __init__(self, read: Reader, installation: str) -> None:
        self._read = read
        self._installation = installation

    async def runs(self, jobs: Sequence[str]) -> Mapping[str, JobRuns] | None:
        return await self._read(partial(runs, jobs=jobs, installation=self._installation))

    async def ends(
        self, since: datetime, *, limit: int, by_job: bool, namespaces: Collection[str] | None = None
    ) -> EndCounts:
        return await self._read(partial(_ends, since=since, limit=limit, by_job=by_job, namespaces=namespaces))

    async def of_queue(self, queue: str, since: datetime) -> QueueCounts:
        return await self._read(partial(_of_queue, queue=queue, since=since))

    async def oldest(
        self, status: Status, *, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[ExecutionHead]:
        return await self._read(partial(_oldest, status=status, limit=limit, namespaces=namespaces))

    async def newest_of(self, jobs: Sequence[str], *, limit: int) -> Mapping[str, Sequence[ExecutionHead]]:
        return await self._read(partial(_newest_of, jobs=jobs, limit=limit))

    async def streaks(self, jobs: Sequence[str]) -> Mapping[str, Streak]:
        def of_jobs(connection: Connection) -> Mapping[str, Streak]:
            streaks = ((job, _streak(connection, job)) for job in jobs)
            return {job: streak for job, streak in streaks if streak is not None}

        return await self._read(of_jobs)

    async def letter_groups(self, query: DeadLetterQuery, *, limit: int, by_definition: bool = False) -> LetterGroups:
        return await self._read(partial(letter_groups, query=query, limit=limit, by_definition=by_definition))

    async def failed_jobs(
        self, *, failures: int, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[str]:
        return await self._read(partial(_failed_jobs, failures=failures, limit=limit, namespaces=namespaces))


def _of_queue(connection: Connection, *, queue: str, since: datetime) -> QueueCounts:
    state, is_new = _EXECUTIONS.job_state, _EXECUTIONS.completed_at >= since
    counted = select(state, func.count(), func.sum(case((is_new, 1), else_=0)))
    rows = connection.execute(counted.where(_EXECUTIONS.queue == queue, state.is_not(None)).group_by(state)).all()
    return QueueCounts(
        {name: int(number) for name, number, _ in rows}, {name: int(new) for name, _, new in rows if new}
    )


def _ends(
    connection: Connection, *, since: datetime, limit: int, by_job: bool, namespaces: Collection[str] | None
) -> EndCounts:
    is_file = connection.dialect.name == "sqlite"
    completed_at = _EXECUTIONS.completed_at
    minute = (
        func.substr(type_coerce(completed_at, Text), 1, _MINUTE_TEXT)
        if is_file
        else func.date_trunc("minute", completed_at)
    )
    run = (_EXECUTIONS.job_name, _EXECUTIONS.definition) if by_job else ()

    def of_status(status: Status) -> Mapping[End, int]:
        newest = (
            select(minute.label("minute"), *run)
            .where(_EXECUTIONS.status == status, completed_at.is_not(None), completed_at >= since)
            .where(*within(namespaces, _EXECUTIONS.job_name))
            .order_by(completed_at.desc())
            .limit(limit)
        )
        if by_job:  # nearly every end has another key, and to group them takes the database longer
            runs = Counter(connection.execute(newest).all())
            minutes = {value: _minute(value) for value in {row[0] for row in runs}}
            return {End(minutes[value], job, definition): count for (value, job, definition), count in runs.items()}
        ends = newest.subquery()
        totals = select(ends.c.minute, func.count()).group_by(ends.c.minute)
        return {End(_minute(value)): count for value, count in connection.execute(totals)}

    return counted({status: of_status(status) for status in ENDED}, since, limit)


def _minute(value: str | datetime) -> datetime:
    """Return a minute as the database writes it."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return value.astimezone(UTC)


def _oldest(
    connection: Connection, *, status: Status, limit: int, namespaces: Collection[str] | None
) -> Sequence[ExecutionHead]:
    statement = select(*_HEAD).where(_EXECUTIONS.status == status, *within(namespaces, _EXECUTIONS.job_name))
    ordered = statement.order_by(_EXECUTIONS.scheduled_time, _EXECUTIONS.execution_id).limit(limit)
    return [execution_head(row) for row in connection.execute(ordered)]


def _newest_of(connection: Connection, *, jobs: Sequence[str], limit: int) -> Mapping[str, Sequence[ExecutionHead]]:
    return {
        job: [execution_head(row) for row in connection.execute(_NEWEST_OF, {"job": job, "most": limit})]
        for job in jobs
    }


def _streak(connection: Connection, job: str) -> Streak | None:
    key = _EXECUTIONS.scheduled_time, _EXECUTIONS.execution_id
    newest = [column.desc() for column in key]
    # The condition on the end lets the database use the index `results`.
    results = select(*_HEAD).where(_EXECUTIONS.job_name == job, _EXECUTIONS.completed_at.is_not(None)).limit(1)
    failures = results.where(_EXECUTIONS.status == "failed")
    success = connection.execute(results.where(_EXECUTIONS.status == "completed").order_by(*newest)).one_or_none()
    if success is not None:
        place = zip((success.scheduled_time, success.execution_id), key, strict=True)
        failures = failures.where(tuple_(*key) > tuple_(*(literal(value, column.type) for value, column in place)))
    first = connection.execute(failures.order_by(*key)).one_or_none()
    last = connection.execute(failures.order_by(*newest)).one_or_none()
    if first is None or last is None:
        return None
    counted_failures = failures.with_only_columns(_EXECUTIONS.execution_id).limit(MAX_STREAK).subquery()
    count = connection.execute(select(func.count()).select_from(counted_failures)).scalar_one()
    return Streak(execution_head(first), execution_head(last), count)


def _failed_jobs(
    connection: Connection, *, failures: int, limit: int, namespaces: Collection[str] | None
) -> Sequence[str]:
    newest = (
        select(_EXECUTIONS.job_name, _EXECUTIONS.completed_at)
        .where(_EXECUTIONS.status == "failed", _EXECUTIONS.completed_at.is_not(None))
        .where(*within(namespaces, _EXECUTIONS.job_name))
        .order_by(_EXECUTIONS.completed_at.desc())
        .limit(failures)
        .subquery()
    )
    last = func.max(newest.c.completed_at)
    statement = select(newest.c.job_name).group_by(newest.c.job_name).order_by(last.desc(), newest.c.job_name)
    return connection.execute(statement.limit(limit)).scalars().all()
