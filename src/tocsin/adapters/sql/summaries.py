"""Implementation of `ports.summaries` in a SQL database."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    select,
    text,
    tuple_,
    type_coerce,
)

from ...domain.execution_record import LastRun, Recoveries, Status
from ...ports.queries import DeadLetterQuery
from ...ports.summaries import (
    ENDED,
    MAX_ERROR,
    MAX_STREAK,
    End,
    EndCounts,
    ExecutionHead,
    HandOver,
    HandOverCount,
    HandOvers,
    JobRuns,
    LetterGroup,
    LetterGroups,
    QueueCounts,
    Streak,
)
from ..history.rows import letter_id_of
from . import tables, totals
from .engine import read_rows
from .rows import execution_head
from .tables import dead_letter_conditions, within

P = ParamSpec("P")
T = TypeVar("T")

_EXECUTIONS: Final = tables.executions.c
_TOTALS: Final = tables.totals.c
_LAST: Final = tables.last_runs.c

_ENDS: Final = (
    select(_TOTALS.job_name, _TOTALS.status, func.sum(_TOTALS.total))
    .where(_TOTALS.kind == "executions")
    .group_by(_TOTALS.job_name, _TOTALS.status)
)
_RUNNING: Final = (
    select(_EXECUTIONS.job_name, func.count())
    .where(text("status = 'running'"))  # without a parameter, or no index is used
    .group_by(_EXECUTIONS.job_name)
)
_LAST_RUNS: Final = select(
    _LAST.job_name,
    *(_LAST.execution_id, _LAST.status, _LAST.ended_at, _LAST.duration_ms, _LAST.error, _LAST.reason, _LAST.definition),
)

_LETTERS: Final = tables.dead_letters.c
_KEY: Final[tuple[Column[Any], ...]] = (_LETTERS.job_name, _LETTERS.error_pattern)


def letter_groups(
    connection: Connection, query: DeadLetterQuery, *, limit: int, by_definition: bool = False
) -> LetterGroups:
    """Return the groups of dead letters whose errors have the same pattern."""
    if not by_definition:
        groups = _grouped(connection, query, limit + 1)
    else:  # two statements, because each follows the order of an index
        groups = _grouped(connection, query, limit + 1, _LETTERS.definition)
        groups += _grouped(connection, query, limit + 1, _LETTERS.first_attempt)
        groups.sort(key=lambda group: (-group.count, -group.last.timestamp(), group.job_name, group.pattern))
    return LetterGroups(groups[:limit], is_complete=len(groups) <= limit)


def _grouped(
    connection: Connection, query: DeadLetterQuery, limit: int, part: Column[Any] | None = None
) -> list[LetterGroup]:
    """Return the largest groups by job, pattern and `part`.

    Only dead letters with a definition have parts by definition, and only those without one have others.
    """
    by = _KEY if part is None else (*_KEY, part)
    conditions = dead_letter_conditions(query)
    if part is not None:
        has_definition = part is _LETTERS.definition
        conditions.append(_LETTERS.definition.is_not(None) if has_definition else _LETTERS.definition.is_(None))
    count, last = func.count().label("number"), func.max(_LETTERS.last_attempt).label("last")
    counted = (
        select(*by, count, func.min(_LETTERS.last_attempt).label("first"), last)
        .where(*conditions)
        .group_by(*by)
        .order_by(count.desc(), last.desc(), *_KEY)
        .limit(limit)
        .subquery()
    )
    letter = tables.dead_letters.alias().c
    example = (
        select(letter.letter_id)
        .where(letter.job_name == counted.c.job_name, letter.error_pattern == counted.c.error_pattern)
        .where(letter.last_attempt == counted.c.last)
        .where(*dead_letter_conditions(query, letter))
        .order_by(letter.letter_id.desc())
        .limit(1)
    )
    if part is not None:
        example = example.where(letter[part.name] == counted.c[part.name])
        if part is not _LETTERS.definition:
            example = example.where(letter.definition.is_(None))
    statement = select(counted, example.scalar_subquery().label("example"))
    ordered = statement.order_by(counted.c.number.desc(), counted.c.last.desc(), *(counted.c[key.name] for key in _KEY))
    return [
        LetterGroup(
            job_name=row.job_name,
            pattern=row.error_pattern,
            count=row.number,
            first=row.first,
            last=row.last,
            example=letter_id_of(row.example),
            definition=row.definition if part is _LETTERS.definition else None,
            first_attempt=row.first_attempt if part is _LETTERS.first_attempt else None,
        )
        for row in connection.execute(ordered)
    ]


def runs(connection: Connection, *, jobs: Sequence[str], installation: str) -> dict[str, JobRuns] | None:
    """Return the counters of jobs; None: a rebuild has not reached its former place."""
    if not totals.are_complete(connection, installation=installation):
        return None
    ends = defaultdict[str, dict[Status, int]](dict)
    for job, status, total in read_rows(connection, _ENDS, _TOTALS.job_name, jobs):
        ends[job][status] = int(total)
    running = dict(map(tuple, read_rows(connection, _RUNNING, _EXECUTIONS.job_name, jobs)))
    last = {job: LastRun(*columns) for job, *columns in read_rows(connection, _LAST_RUNS, _LAST.job_name, jobs)}
    return {job: JobRuns(ends.get(job, {}), running.get(job, 0), last.get(job)) for job in jobs}


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

_MINUTE = timedelta(minutes=1)


def counted(ends: Mapping[Status, Mapping[End, int]], since: datetime, limit: int) -> EndCounts:
    """Return counts of ends by status, from a minute on without gaps.

    From that minute on, no status lacks an end. `ends` are the newest `limit` ends of each status at or after `since`.
    """
    oldest = [min(end.minute for end in found) + _MINUTE for found in ends.values() if sum(found.values()) >= limit]
    begin = max([since, *oldest])
    counts: dict[Status, Mapping[End, int]] = {}
    for status, found in ends.items():
        of_status = {end: count for end, count in found.items() if end.minute + _MINUTE > begin} if oldest else found
        if of_status:
            counts[status] = of_status
    return EndCounts(begin, counts)


class Reader(Protocol):
    """Runs a query in a thread of the history."""

    def __call__(self, query: Callable[[Connection], T], /) -> Awaitable[T]: ...


def reading(
    query: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:

    async def read(history: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: ANN401 - it has a `read`
        result: T = await history.read(lambda connection: query(connection, *args, **kwargs))
        return result

    return read


def _of_queue(connection: Connection, queue: str, since: datetime) -> QueueCounts:
    state, is_new = _EXECUTIONS.job_state, _EXECUTIONS.completed_at >= since
    counted = select(state, func.count(), func.sum(case((is_new, 1), else_=0)))
    rows = connection.execute(counted.where(_EXECUTIONS.queue == queue, state.is_not(None)).group_by(state)).all()
    return QueueCounts(
        {name: int(number) for name, number, _ in rows}, {name: int(new) for name, _, new in rows if new}
    )


def _ends(
    connection: Connection, since: datetime, *, limit: int, by_job: bool, namespaces: Collection[str] | None = None
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
    if isinstance(value, str):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return value.astimezone(UTC)


def _oldest(
    connection: Connection, status: Status, *, limit: int, namespaces: Collection[str] | None = None
) -> Sequence[ExecutionHead]:
    statement = select(*_HEAD).where(_EXECUTIONS.status == status, *within(namespaces, _EXECUTIONS.job_name))
    ordered = statement.order_by(_EXECUTIONS.scheduled_time, _EXECUTIONS.execution_id).limit(limit)
    return [execution_head(row) for row in connection.execute(ordered)]


def _newest_of(connection: Connection, jobs: Sequence[str], *, limit: int) -> Mapping[str, Sequence[ExecutionHead]]:
    return {
        job: [execution_head(row) for row in connection.execute(_NEWEST_OF, {"job": job, "most": limit})]
        for job in jobs
    }


def _hand_overs(
    connection: Connection,
    since: datetime,
    *,
    limit: int,
    job: str | None = None,
    namespaces: Collection[str] | None = None,
) -> HandOvers:
    recoveries = [tables.executions.c[f"recoveries_{outcome}"] for outcome in Recoveries._fields]
    tried, successful, failed, _ = recoveries
    is_recovering = and_(_EXECUTIONS.completed_at.is_(None), tried > successful + failed)
    shared = (_EXECUTIONS.job_name, _EXECUTIONS.definition, _EXECUTIONS.status, _EXECUTIONS.was_handed_over)
    newest = (
        select(*shared, is_recovering.label("is_recovering"), *recoveries, _EXECUTIONS.scheduled_time)
        .where(_EXECUTIONS.scheduled_time >= since, *within(namespaces, _EXECUTIONS.job_name))
        .where(*(() if job is None else (_EXECUTIONS.job_name == job,)))
        .order_by(_EXECUTIONS.scheduled_time.desc(), _EXECUTIONS.execution_id.desc())
        .limit(limit)
        .subquery()
    )
    group = [newest.c[column.name] for column in (*shared, is_recovering.label("is_recovering"))]
    sums = [func.sum(newest.c[column.name]) for column in recoveries]
    statement = select(*group, func.count(), func.min(newest.c.scheduled_time), *sums).group_by(*group)
    groups, earliest = dict[HandOver, HandOverCount](), list[datetime]()
    for name, definition, status, was_handed_over, recovering, count, first, *numbers in connection.execute(statement):
        key = HandOver(name, definition, status, was_handed_over, bool(recovering))
        groups[key] = HandOverCount(count, Recoveries(*map(int, numbers)))
        earliest.append(first)
    is_cut = sum(count.executions for count in groups.values()) == limit
    return HandOvers(min(earliest) if is_cut else since, groups)


def _streaks(connection: Connection, jobs: Sequence[str]) -> Mapping[str, Streak]:
    streaks = ((job, _streak(connection, job)) for job in jobs)
    return {job: streak for job, streak in streaks if streak is not None}


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
    connection: Connection, *, failures: int, limit: int, namespaces: Collection[str] | None = None
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


class SqlSummaries:
    """The summaries of a history in a SQL database."""

    def __init__(self, read: Reader, installation: str) -> None:
        self.read = read
        self._installation = installation

    async def runs(self, jobs: Sequence[str]) -> Mapping[str, JobRuns] | None:
        return await self.read(partial(runs, jobs=jobs, installation=self._installation))

    ends = reading(_ends)
    of_queue = reading(_of_queue)
    oldest = reading(_oldest)
    newest_of = reading(_newest_of)
    hand_overs = reading(_hand_overs)
    streaks = reading(_streaks)
    letter_groups = reading(letter_groups)
    failed_jobs = reading(_failed_jobs)
