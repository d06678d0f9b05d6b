"""The behaviour of every history: real servers, each test in an empty database."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from datetime import UTC, datetime, timedelta
from itertools import cycle, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from sqlalchemy import Engine, event

from tests.databases import Redis as RedisServer
from tests.databases import postgresql, redis
from tests.domain.given import NOON, plan, recorded, with_known
from tests.history_files import history_url
from tests.properties import examples
from tocsin.adapters.redis.history import open_history as open_redis
from tocsin.adapters.sql.history import SqlHistory, empty_engine, open_history
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    Admitted,
    Advanced,
    Attempt,
    Cancelled,
    Completed,
    DeadLettered,
    Defined,
    Deleted,
    Dispatched,
    Due,
    ExecutionFact,
    Exhausted,
    Failed,
    Failure,
    FannedOut,
    Message,
    Passed,
    Paused,
    PoisonMessage,
    Recorded,
    Refusal,
    Resolved,
    Resumed,
    RetryScheduled,
    Skipped,
    Started,
)
from tocsin.domain.execution_record import Status
from tocsin.domain.totals import MAX_UNREGISTERED_JOBS, OTHER, Total
from tocsin.ports import DeadLetterRow, Duration, ExecutionRow, History, JobRow, PassedSpan, SequenceConflict
from tocsin.ports.queries import (
    CountQuery,
    DeadLetterQuery,
    DeadLetterSort,
    ExecutionQuery,
    ExecutionSort,
    InvalidQuery,
    Page,
    Place,
    every,
)
from tocsin.subjects import Stream

BOOM = Failure(type="ValueError", message="boom", traceback="Traceback …")


class Crash(Exception):
    """The process dies at the worst moment."""


class Database(Protocol):
    """An empty database of some technology."""

    def open(self, installation: str = "") -> AbstractAsyncContextManager[History]:
        """One process's history in it."""

    def crashing(self) -> AbstractContextManager[None]:
        """Inside the block, recording a dead letter raises `Crash` after all writes and before the commit."""


class SqliteDatabase:
    """A file."""

    def __init__(self, directory: Path) -> None:
        self._url = history_url(directory)

    def open(self, installation: str = "") -> AbstractAsyncContextManager[History]:
        """One process's history in it."""
        return open_history(self._url, installation=installation)

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """See `Database`."""

        def crash(*context: object) -> None:
            if "INSERT INTO scheduler_dead_letters" in str(context[2]):
                raise Crash

        event.listen(Engine, "before_cursor_execute", crash)
        try:
            yield
        finally:
            event.remove(Engine, "before_cursor_execute", crash)


class MemoryDatabase:
    """A database in memory, which all its histories share."""

    def __init__(self) -> None:
        self._engine = empty_engine()

    @asynccontextmanager
    async def open(self, installation: str = "") -> AsyncIterator[History]:
        """One process's history in it."""
        yield SqlHistory(self._engine, installation=installation, threads=0)

    crashing = SqliteDatabase.crashing

    def close(self) -> None:
        """Forget it."""
        self._engine.dispose()


class PostgreSqlDatabase:
    """A database in a server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, installation: str = "") -> AbstractAsyncContextManager[History]:
        """One process's history in it."""
        return open_history(self._url, installation=installation, max_connections=3)

    crashing = SqliteDatabase.crashing


class RedisDatabase:
    """A server, emptied before."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, installation: str = "") -> AbstractAsyncContextManager[History]:
        """One process's history in it."""
        return open_redis(self._url, installation=installation, max_connections=4)

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """See `Database`."""

        def crash(*_: object) -> None:
            raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pipeline, "_execute_transaction", crash)
            yield


class Databases:
    """Empty databases of one technology, for one test after the other."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._template: str | None = None
        self._redis: RedisServer | None = None
        self._numbers = cycle(range(64))
        self._stack = ExitStack()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Database]:
        """One."""
        if self._kind == "sqlite":
            with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                yield SqliteDatabase(Path(directory))
        elif self._kind == "memory":
            with closing(MemoryDatabase()) as database:
                yield database
        elif self._kind == "redis":
            self._redis = self._redis or self._stack.enter_context(redis())
            async with Redis.from_url(url := self._redis.url(next(self._numbers))) as client:
                await client.flushdb()
            yield RedisDatabase(url)
        else:
            url = await self._postgresql()
            yield PostgreSqlDatabase(url)
            await asyncio.to_thread(self._server.drop, url)

    async def _postgresql(self) -> str:
        """The URL of a database that has its tables already: a copy of the first."""
        if self._template is None:
            self._server = self._stack.enter_context(postgresql())
            url = self._server.new_database()
            async with open_history(url):
                pass
            self._template = url.rpartition("/")[2]
        return await asyncio.to_thread(self._server.new_database, template=self._template)

    def close(self) -> None:
        """End the server, if there is one."""
        self._stack.close()


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgresql", "redis"])
def empty_database(request: pytest.FixtureRequest) -> Iterator["EmptyDatabase"]:
    """Makes empty databases."""
    databases = Databases(request.param)
    yield databases
    databases.close()


EmptyDatabase = Callable[[], AbstractAsyncContextManager[Database]]


def facts_of(execution_id: str, job: str = "nightly") -> dict[str, Message]:
    """One fact of each kind."""
    who: dict[str, Any] = {"job": job, "execution_id": execution_id}
    what: dict[str, Any] = {**who, "scheduled_time": NOON, "trigger": "cron"}
    return {
        "admitted": Admitted(
            **what,
            plan=plan({"main": (), "next": ("main",)}).changed(tags=(job, "all", "all")),
            by=Actor(identity="ann"),
        ),
        "skipped": Skipped(**what, reason="overlap_skip", definition=1),
        "announced": Skipped(**what, reason="disabled", definition=1),
        "dispatched": Dispatched(
            **what, step="main", attempt=1, max_attempts=3, function="f/main", timeout=30, token=""
        ),
        "started": Started(**who, step="main", attempt=1, delivery=1, worker="w-1"),
        "retry": RetryScheduled(**who, step="main", attempt=1, error=BOOM, delay=1, next_attempt_at=NOON),
        "again": Started(**who, step="main", attempt=2, delivery=1, worker="w-2"),
        "advanced": Advanced(**who, step="main", attempt=2, result={"rows": 3}),
        "exhausted": Exhausted(**who, step="main", attempt=2, error=BOOM, reason="attempts"),
        "completed": Completed(**what, step="next", attempt=1, result=["done"]),
        "failed": Failed(**what, step="main", attempt=2, error=BOOM, cancelled_steps=("next",), dead_letter=True),
        "cancelled": Cancelled(**what, reason="by hand"),
        "dead-lettered": DeadLettered(
            **what,
            id=execution_id,
            input={"n": 1},
            attempts=(Attempt(step="main", attempt=1, error=BOOM),),
            last_error=BOOM,
            first_attempt=NOON,
            last_attempt=NOON,
        ),
        "resolved": Resolved(job=job, id=execution_id),
        "refused": PoisonMessage(
            job=job,
            id=f"planner-{execution_id}",
            reason="unreadable",
            durable="planner",
            subject="x",
            sequence=7,
            body="",
        ),
    }


def story(*kinds: str, execution_id: str = "1", job: str = "nightly") -> list[Message]:
    """The facts of these kinds, in this order, of one execution."""
    facts = facts_of(execution_id, job)
    return [facts[kind] for kind in kinds]


A_SUCCESS = ("admitted", "dispatched", "started", "advanced", "completed")
A_FAILURE = ("admitted", "dispatched", "started", "retry", "again", "failed", "dead-lettered")

Rows = tuple[int, Sequence[ExecutionRow], Sequence[DeadLetterRow]]


async def record_all(history: History, facts: Sequence[Recorded[Message]]) -> None:
    """Everything in one batch, into an empty history."""
    await history.record(Stream.LOG, facts, after=0, upto=len(facts))


async def everything(history: History) -> Rows:
    """Return the whole content of a history."""
    return (
        await history.offset(Stream.LOG),
        (await history.executions(ExecutionQuery(limit=1_000))).rows,
        (await history.dead_letters(DeadLetterQuery(limit=1_000))).rows,
    )


async def test_an_empty_history(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        assert await everything(history) == (0, [], [])
        assert await history.execution("1") is None


async def test_the_rows_of_an_execution_that_failed(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(story(*A_FAILURE)))

        row = await history.execution("1")
        assert row == ExecutionRow(
            job_name="nightly",
            execution_id="1",
            trigger="cron",
            status="failed",
            scheduled_time=NOON,
            started_at=NOON + timedelta(seconds=3),
            completed_at=NOON + timedelta(seconds=6),
            duration_ms=3_000,
            attempt=2,
            worker="w-2",
            error="ValueError: boom",
            dag_state={
                "main": {
                    "status": "failed",
                    "attempt": 2,
                    "started_at": "2026-11-20T12:00:03Z",
                    "ended_at": "2026-11-20T12:00:06Z",
                    "error": "ValueError: boom",
                    "worker": "w-2",
                    "result": None,
                    "phase": None,
                },
                "next": {
                    "status": "cancelled",
                    "attempt": 0,
                    "started_at": None,
                    "ended_at": "2026-11-20T12:00:06Z",
                    "error": None,
                    "worker": None,
                    "result": None,
                    "phase": None,
                },
            },
            error_type="ValueError",
            traceback="Traceback …",
            tags=("nightly", "all", "all"),
            created_by="ann",
            definition=1,
        )
        assert (await history.dead_letters()).rows == [
            DeadLetterRow(
                id="1",
                job_name="nightly",
                execution_id="1",
                attempts=1,
                last_error="ValueError: boom",
                input={"n": 1},
                first_attempt=NOON,
                last_attempt=NOON,
                resolved=False,
                input_size=7,
            )
        ]


async def test_rows_of_dead_letters_are_bounded(empty_database: EmptyDatabase) -> None:
    """A publisher outside chooses the message, the input and the text of an error."""
    huge = "é" * 100_000
    poison = PoisonMessage.of("nightly", "planner", "trigger.nightly", 1, huge.encode(), huge)
    failed = facts_of("2")["dead-lettered"].changed(input={"rows": huge}, last_error=BOOM.changed(message=huge))
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LOG, recorded([poison, failed]), after=0, upto=2)
        rows = (await history.dead_letters()).rows
        assert len(rows) == 2
        for row in rows:
            assert row.input == {}
            assert row.input_size > 100_000
            assert row.input_beginning is not None
            assert row.input_beginning.startswith("{")
            assert len(row.input_beginning.encode()) <= 1_024
            assert len(row.last_error or "") <= 1_024


async def test_rows_name_the_definition_of_their_execution(empty_database: EmptyDatabase) -> None:
    """Permissions rest on it, so no later event may change it."""
    late = facts_of("1")["dead-lettered"].changed(definition=1)
    refused = facts_of("3")["skipped"].changed(refusal=Refusal(code="c", message="m"), definition=0)
    facts = [*story("admitted", "failed"), late, facts_of("2")["skipped"], refused, facts_of("4")["refused"]]
    async with empty_database() as database, database.open() as history:
        for sequence, fact in enumerate(recorded(facts)):
            await history.record(Stream.LOG, [fact], after=sequence, upto=sequence + 1)
        rows = {row.execution_id: row.definition for row in (await history.executions()).rows}
        assert rows == {"1": 1, "2": 1, "3": None}
        letters = {row.id: row.definition for row in (await history.dead_letters()).rows}
        assert letters == {"1": 1, "planner-4": None}


async def test_difficult_texts_and_naive_times_are_stored(empty_database: EmptyDatabase) -> None:
    awkward = Failure(type="Bad\0Byte", message="'; drop table \U0001f4a3")
    facts = [
        with_known(fact, error=awkward, last_error=awkward, input={"\0": "\0", "x": float("nan")})
        for fact in story(*A_FAILURE)
    ]
    facts[0] = facts[0].changed(scheduled_time=NOON.replace(tzinfo=None))
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))

        (row,), (letter,) = (await history.executions()).rows, (await history.dead_letters()).rows
        assert row.error == letter.last_error == "Bad\ufffdByte: '; drop table \U0001f4a3"
        assert row.scheduled_time == NOON
        assert letter.input == {"\ufffd": "\ufffd", "x": None}


async def test_an_execution_may_take_months(empty_database: EmptyDatabase) -> None:
    facts = recorded(story("admitted", "started")) + recorded(story("completed"), start=NOON + timedelta(days=90))
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LOG, facts, after=0, upto=3)
        assert [row.duration_ms for row in (await history.executions()).rows] == [90 * 86_400_000 - 1_000]


async def test_more_executions_than_a_statement_has_parameters(empty_database: EmptyDatabase) -> None:
    facts, ids = facts_of(""), [{"execution_id": f"{n:05}"} for n in range(3_000)]
    admissions = recorded([facts["admitted"].changed(**id_) for id_ in ids])
    ends = recorded([facts["cancelled"].changed(**id_) for id_ in ids])
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LOG, admissions, after=0, upto=3_000)
        await history.record(Stream.LOG, ends, after=3_000, upto=6_000)
        page = await history.executions(ExecutionQuery(status="cancelled", limit=5_000))
        assert (len(page.rows), page.cursor) == (3_000, None)


async def test_results_and_cancellation_reasons_are_stored(empty_database: EmptyDatabase) -> None:
    facts = [*story("admitted", "skipped"), *story("admitted", "cancelled", execution_id="2")]
    facts += story("admitted", "started", "advanced", "completed", execution_id="3")
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))
        rows = (await history.executions(ExecutionQuery(sort="oldest"))).rows
        assert [(row.status, row.reason, row.result) for row in rows] == [
            ("skipped", "overlap_skip", None),
            ("cancelled", "by hand", None),
            ("completed", None, ["done"]),
        ]
        steps = rows[2].dag_state
        assert [step["result"] for step in steps.values() if isinstance(step, dict)] == [{"rows": 3}, ["done"]]


async def test_the_rows_of_jobs(empty_database: EmptyDatabase) -> None:
    definition = JobDefinition(name="nightly", schedule="0 3 * * *", function="f", description="Nightly", tags=("t",))
    facts: list[Message] = [
        Defined(job="nightly", definition=definition, by=Actor(identity="ann")),
        Due(job="nightly", scheduled_time=NOON + timedelta(hours=15), definition=1),
        Defined(
            job="once", definition=definition.model_copy(update={"name": "once", "schedule": "at 2026-12-01T09:00"})
        ),
        Paused(job="once", definition=3),
        Defined(job="on-demand", definition=definition.model_copy(update={"name": "on-demand", "schedule": None})),
        Deleted(job="on-demand"),
    ]
    async with empty_database() as database, database.open() as history, database.open() as other:
        stored = recorded(facts)
        for history_, fact in zip((history, other, *[history] * 9), stored, strict=False):  # by one after the other
            await history_.record(Stream.LEDGER, [fact], after=fact.sequence - 1, upto=fact.sequence)

        nightly, on_demand, once = await history.jobs()
        assert nightly == JobRow(
            job_id=nightly.job_id,
            job_name="nightly",
            state="ENABLED",
            schedule_type="RECURRING",
            next_run_time=NOON + timedelta(days=1, hours=15),
            last_scheduled_time=NOON + timedelta(hours=15),
            created_at=NOON + timedelta(seconds=1),
            created_by="ann",
            definition=definition.model_dump(mode="json", exclude_none=True),
        )
        assert (once.state, once.schedule_type, once.next_run_time) == ("PAUSED", "ONE_TIME", None)
        assert (on_demand.state, on_demand.schedule_type, on_demand.next_run_time) == ("DELETED", None, None)

        again: list[Message] = [
            Defined(job="on-demand", definition=definition.model_copy(update={"name": "on-demand"}))
        ]
        (back,) = recorded(again, start=NOON + timedelta(days=2))
        await history.record(Stream.LEDGER, [back], after=6, upto=7)
        ((state, next_run_time, job_id),) = [
            (job.state, job.next_run_time, job.job_id) for job in await history.jobs() if job.job_name == "on-demand"
        ]
        assert (state, next_run_time) == ("ENABLED", NOON + timedelta(days=2, hours=15))
        assert job_id != on_demand.job_id


async def test_forgotten_rows_can_be_recorded_again(empty_database: EmptyDatabase) -> None:
    facts = recorded(story(*A_FAILURE))
    async with empty_database() as database, database.open() as history:
        await record_all(history, facts)
        before = await everything(history)
        await history.forget()
        assert await everything(history) == (0, [], [])
        with pytest.raises(SequenceConflict):
            await history.record(Stream.LOG, facts, after=len(facts), upto=9)
        await record_all(history, facts)
        assert await everything(history) == before


async def test_rows_older_than_the_retention_are_deleted(empty_database: EmptyDatabase) -> None:
    brief = JobDefinition(name="brief", function="f", retention=3_600.0)
    defined = recorded([Defined(job="brief", definition=brief)])
    day = timedelta(days=1)
    facts = [
        *story(*A_FAILURE, execution_id="1"),
        *story("admitted", "started", execution_id="2"),
        *story(*A_SUCCESS, execution_id="3", job="brief"),
        *story("resolved", execution_id="1"),
        *story("admitted", "cancelled", "dead-lettered", execution_id="4"),
    ]
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LEDGER, defined, after=0, upto=1)
        await record_all(history, recorded(facts))

        async def left() -> tuple[list[str], list[str]]:
            rows = (await history.executions(ExecutionQuery(sort="oldest"))).rows
            letters = (await history.dead_letters()).rows
            return sorted(row.execution_id for row in rows), sorted(letter.id for letter in letters)

        assert await history.expire(NOON + timedelta(minutes=30), after=day) == 0
        assert await history.expire(NOON + timedelta(hours=2), after=day) == 1
        assert await left() == (["1", "2", "4"], ["1", "4"])
        assert await history.count(ExecutionQuery(tag="all")) == 3
        assert (
            await history.expire(NOON + 2 * day, after=day) == 3
        )  # two executions, and the letter that was dealt with
        assert await left() == (["2"], ["4"])
        assert await history.expire(NOON + 2 * day, after=day) == 0
        # What is still running stays, and ends as it should.
        end = Recorded(facts_of("2")["completed"], "execution.nightly.2.completed", 99, NOON + 2 * day)
        await history.record(Stream.LOG, [end], after=len(facts), upto=99)
        assert await left() == (["2"], ["4"])
        assert await history.expire(NOON + 4 * day, after=day) == 1


@pytest.mark.parametrize("at_once", [1, 100])
async def test_letters_of_jobs_sharing_an_id_are_kept(empty_database: EmptyDatabase, at_once: int) -> None:
    """A client may bring an id that an execution of another job has."""
    facts = [
        *story("dead-lettered", execution_id="1", job="nightly"),
        *story("dead-lettered", execution_id="1", job="other"),
        *story("dead-lettered", execution_id="12", job="other"),
        *story("resolved", execution_id="1", job="other"),
    ]
    every_one = recorded(facts)
    async with empty_database() as database, database.open() as history:
        for start in range(0, len(facts), at_once):
            some = every_one[start : start + at_once]
            await history.record(Stream.LOG, some, after=start, upto=start + len(some))

        async def names(**query: Any) -> set[tuple[str, str, bool]]:  # noqa: ANN401 - fields of a query
            pages = every(history.dead_letters, DeadLetterQuery(limit=1, **query))
            return {(row.job_name, row.id, row.resolved) async for row in pages}

        first, second, third = ("nightly", "1", False), ("other", "1", True), ("other", "12", False)
        assert await names() == await names(id_prefix="1") == {first, second, third}
        assert await names(job="other") == {second, third}
        assert await names(unresolved=True) == {first, third}
        groups = await history.summaries.letter_groups(query=DeadLetterQuery(), limit=9)
        assert {group.job_name: group.count for group in groups.groups} == {"nightly": 1, "other": 2}
        assert {group.example for group in groups.groups} <= {"1", "12"}
        assert await history.expire(NOON + timedelta(days=2), after=timedelta(days=1)) == 1
        assert await names() == {first, third}
        end = len(facts)
        for number, job in enumerate(("other", "nightly"), end + 1):
            resolved = Recorded(facts_of("1", job)["resolved"], f"dead-letter.{job}.1.resolved", number, NOON)
            await history.record(Stream.LOG, [resolved], after=number - 1, upto=number)
        assert await names() == {("nightly", "1", True), third}


async def test_history_that_is_off_ends_what_it_has(empty_database: EmptyDatabase) -> None:
    before = recorded([*story("admitted", "started", execution_id="1")])
    while_off = recorded(
        [
            *story("admitted", "completed", execution_id="1"),
            *story(*A_FAILURE, execution_id="2"),
            *story("admitted", execution_id="3"),
        ]
    )
    after = recorded([*story("started", "completed", execution_id="3"), *story(*A_SUCCESS, execution_id="4")])
    upto = 0
    async with empty_database() as database, database.open() as history, database.open() as other:
        for recorder, facts, opens in ((history, before, True), (other, while_off, False), (history, after, True)):
            await recorder.record(Stream.LOG, facts, after=upto, upto=upto + len(facts), opens=opens)
            upto += len(facts)
        rows = {row.execution_id: row.status for row in (await history.executions()).rows}
        assert rows == {"1": "completed", "3": "completed", "4": "completed"}
        assert [letter.id for letter in (await history.dead_letters()).rows] == ["2"]
        assert await history.offset(Stream.LOG) == upto


async def test_executions_of_an_occurrence_are_listed(empty_database: EmptyDatabase) -> None:
    facts: list[Message] = []
    for execution_id, shard in (("1", "a"), ("2", "b"), ("3", None)):
        for fact in story(*A_SUCCESS, execution_id=execution_id):
            if isinstance(fact, Admitted) and shard is not None:
                divided = fact.plan.changed(shard=shard, occurrence="0")
                facts.append(fact.changed(plan=divided))
            else:
                facts.append(fact)
    fanned = FannedOut(
        job="nightly",
        execution_id="0",
        scheduled_time=NOON,
        trigger="cron",
        definition=1,
        map=1,
        shards=("a", "b"),
    )
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded([fanned, *facts]))
        assert await history.execution("0") is None
        rows = (await history.executions(ExecutionQuery(occurrence="0"))).rows
        assert [(row.execution_id, row.shard, row.occurrence_id) for row in rows] == [("2", "b", "0"), ("1", "a", "0")]
        assert await history.count(ExecutionQuery(occurrence="0", status="completed")) == 2
        assert await history.count(ExecutionQuery(occurrence="1")) == 0
        [other] = [row for row in (await history.executions(ExecutionQuery())).rows if row.execution_id == "3"]
        assert (other.shard, other.occurrence_id) == (None, None)


async def test_listing(empty_database: EmptyDatabase) -> None:
    facts = [
        *story(*A_SUCCESS, execution_id="1"),
        *story("admitted", execution_id="2"),
        *story(*A_FAILURE, execution_id="3", job="hourly"),
        *story("refused", execution_id="4"),
    ]
    later = [
        with_known(fact, scheduled_time=NOON + timedelta(hours=1))
        for fact in story("admitted", execution_id="0", job="hourly")
    ]

    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded([*facts, *later]))

        async def ids(**query: Any) -> list[str]:  # noqa: ANN401 - the fields of a query
            return [row.execution_id for row in (await history.executions(ExecutionQuery(**query))).rows]

        assert await ids() == ["0", "3", "2", "1"]
        assert await ids(limit=2) == ["0", "3"]
        assert await ids(job="nightly") == ["2", "1"]
        assert await ids(job="nightly", status="completed") == ["1"]
        assert await ids(status="pending") == ["0", "2"]
        assert await ids(job="weekly") == []
        assert await ids(trigger="cron", limit=1) == ["0"]
        assert await ids(trigger="manual") == []
        assert await ids(tag="nightly") == ["2", "1"]
        assert await ids(tag="nightly", limit=1) == ["2"]
        assert await ids(tag="all", sort="first-started") == ["1", "2", "3", "0"]
        assert await ids(tag="all", status="pending", until=NOON + timedelta(minutes=1)) == ["2"]
        assert await ids(tag="none") == []
        assert await history.count(ExecutionQuery(tag="all", trigger="cron")) == 4
        assert await history.count(ExecutionQuery(limit=1)) == 4
        assert await ids(since=NOON + timedelta(minutes=1)) == ["0"]
        assert await ids(until=NOON + timedelta(minutes=1)) == ["3", "2", "1"]
        assert await ids(error="ERROR: B") == ["3"]
        assert await ids(error="%") == []
        assert await ids(id_prefix="3") == ["3"]
        assert await ids(id_prefix="%") == []

        async def letters(**query: Any) -> list[str]:  # noqa: ANN401 - the fields of a query
            return [letter.id for letter in (await history.dead_letters(DeadLetterQuery(**query))).rows]

        assert await letters() == ["planner-4", "3"]
        assert await letters(limit=1) == ["planner-4"]
        assert await letters(sort="oldest") == ["3", "planner-4"]
        assert await letters(job="hourly", unresolved=True) == ["3"]
        assert await letters(error="READ") == ["planner-4"]
        assert await letters(until=NOON + timedelta(seconds=1)) == ["3"]
        assert await letters(id_prefix="pla") == ["planner-4"]


async def test_lists_of_namespaces_have_no_other_rows(empty_database: EmptyDatabase) -> None:
    """A page is full of the rows of its namespaces, and its cursor names one of them."""
    jobs = ("pay.a", "bill.a", "pay-x.a", "pay", "pay.b", "bill.b")
    facts = [fact for n, job in enumerate(jobs) for fact in story(*A_FAILURE, execution_id=f"{n}", job=job)]
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))
        for namespaces, names in {("pay",): {"0", "4"}, ("pay", "bill"): {"0", "1", "4", "5"}, ("p_y",): set()}.items():
            for limit in (1, 2, 10):
                query = ExecutionQuery(namespaces=namespaces, limit=limit)
                assert {row.execution_id async for row in every(history.executions, query)} == names
                letters = DeadLetterQuery(namespaces=namespaces, limit=limit)
                assert {row.id async for row in every(history.dead_letters, letters)} == names
            assert await history.count(ExecutionQuery(namespaces=namespaces)) == len(names)
        assert await history.executions(ExecutionQuery(namespaces=(), limit=1)) == Page([])
        assert (await history.executions(ExecutionQuery(namespaces=("pay",), limit=2))).cursor is None
        assert await history.executions(ExecutionQuery(namespaces=("pay",), job="bill.a", limit=1)) == Page([])


def executions_with_ties() -> list[Recorded[Message]]:
    """Twenty executions of a few scheduled times, starts and durations, some without."""
    facts: list[Recorded[Message]] = []
    for n in range(20):
        kinds = A_SUCCESS if n % 4 else A_SUCCESS[: n % 3 + 1]
        at = NOON + timedelta(hours=n % 3)
        for i, fact in enumerate(story(*kinds, execution_id=f"{n:02}")):
            fact = with_known(fact, scheduled_time=at)  # noqa: PLW2901
            time = at + timedelta(seconds=i * (n % 2 + 1))
            facts.append(Recorded(fact, f"execution.nightly.{n:02}.x", len(facts) + 1, time))
    return facts


@pytest.mark.parametrize("sort", get_args(ExecutionSort))
@pytest.mark.parametrize("limit", [1, 3, 20])
async def test_pages_of_any_size_list_each_row_once(
    empty_database: EmptyDatabase, sort: ExecutionSort, limit: int
) -> None:
    async with empty_database() as database, database.open() as history:
        await record_all(history, executions_with_ties())
        whole = (await history.executions(ExecutionQuery(sort=sort, limit=100))).rows
        paged = [row async for row in every(history.executions, ExecutionQuery(sort=sort, limit=limit))]
        assert paged == whole

        key: dict[str, Callable[[ExecutionRow], Any]] = {
            "newest": lambda row: (row.scheduled_time, row.execution_id),
            "last-started": lambda row: (row.started_at, row.execution_id),
            "longest": lambda row: (row.duration_ms, row.execution_id),
        }
        opposite = {"oldest": "newest", "first-started": "last-started", "shortest": "longest"}
        assert len(whole) == (15 if sort in {"longest", "shortest"} else 20)
        order = opposite.get(sort, sort)
        # A row without a start has the place of its first event, which it does not show.
        ordered = [row for row in whole if order != "last-started" or row.started_at is not None]
        assert len(ordered) > 1
        assert ordered == sorted(ordered, key=key[order], reverse=sort not in opposite)


async def test_rows_that_arrive_between_two_pages_shift_nothing(empty_database: EmptyDatabase) -> None:
    facts = executions_with_ties()
    newer = [fact.changed(scheduled_time=NOON + timedelta(days=1)) for fact in story("admitted", execution_id="99")]
    async with empty_database() as database, database.open() as history:
        await record_all(history, facts)
        whole = [row.execution_id for row in (await history.executions()).rows]
        first = await history.executions(ExecutionQuery(limit=7))
        await history.record(Stream.LOG, recorded(newer), after=len(facts), upto=len(facts) + 1)
        rest = await history.executions(ExecutionQuery(cursor=first.cursor))
        assert [row.execution_id for row in (*first.rows, *rest.rows)] == whole
        assert rest.cursor is None


async def test_cursor_of_any_place_is_read(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record_all(history, executions_with_ties())
        for key in (-62_135_596_800_000_000, -1, 0, 2**31, 2**53, 253_402_300_799_999_999):
            for sort in get_args(ExecutionSort):
                for id in ("", "x" * 1_000, "\u0001", "🙂"):  # noqa: A001 - the field has this name
                    page = await history.executions(ExecutionQuery(sort=sort, cursor=Place(sort, key, id).cursor))
                    assert page.cursor is None
            for order in get_args(DeadLetterSort):
                await history.dead_letters(DeadLetterQuery(sort=order, cursor=Place(order, key, "x").cursor))


@pytest.mark.parametrize("place", [Place("newest", 10**40, "x"), Place("newest", 0, "\0")])
def test_cursor_of_an_impossible_place_is_refused(place: Place) -> None:
    with pytest.raises(InvalidQuery, match="cursor"):
        ExecutionQuery(cursor=place.cursor)


async def test_dead_letters_come_in_pages_too(empty_database: EmptyDatabase) -> None:
    facts = [fact for n in range(9) for fact in story("dead-lettered", "refused", execution_id=str(n))]
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))
        whole = (await history.dead_letters()).rows
        for limit in (1, 4):
            query = DeadLetterQuery(limit=limit)
            assert [row async for row in every(history.dead_letters, query)] == whole
            query = DeadLetterQuery(limit=limit, sort="oldest")
            assert [row async for row in every(history.dead_letters, query)] == whole[::-1]


@pytest.mark.parametrize("sort", get_args(DeadLetterSort))
async def test_dead_letters_continue_after_any_row(empty_database: EmptyDatabase, sort: DeadLetterSort) -> None:
    """Letters of several jobs may have one id and one time."""
    facts = [fact for n in range(3) for fact in story("dead-lettered", execution_id=str(n))]
    facts += [fact.changed(job=job) for job in ("a", "z") for fact in facts]
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))
        whole = await history.dead_letters(DeadLetterQuery(sort=sort))
        assert len({(row.job_name, row.id) for row in whole.rows}) == len(whole.places) == len(facts)
        for number, place in enumerate(whole.places, 1):
            rest = await history.dead_letters(DeadLetterQuery(sort=sort, cursor=place.cursor))
            assert rest.rows == whole.rows[number:]


async def test_position_moves_without_rows_per_stream(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LOG, [], after=0, upto=0)
        await history.record(Stream.LOG, [], after=0, upto=7)
        await history.record(Stream.LOG, [], after=7, upto=9)
        assert (await history.offset(Stream.LOG), await history.offset(Stream.LEDGER)) == (9, 0)


@pytest.mark.parametrize("after", [0, 2, 4])
async def test_a_batch_from_another_place_is_refused(empty_database: EmptyDatabase, after: int) -> None:
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(story("admitted", "dispatched", "started")))
        before = await everything(history)

        with pytest.raises(SequenceConflict):
            await history.record(Stream.LOG, recorded(story("completed")), after=after, upto=9)
        assert await everything(history) == before


async def test_history_behind_its_position_refuses_a_later_batch(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        with pytest.raises(SequenceConflict):
            await history.record(Stream.LOG, recorded(story("admitted")), after=5, upto=6)
        assert await everything(history) == (0, [], [])


async def test_crash_before_commit_changes_nothing(empty_database: EmptyDatabase) -> None:
    facts = recorded(story(*A_FAILURE))
    async with empty_database() as database:
        async with database.open() as history:
            await history.record(Stream.LOG, facts[:2], after=0, upto=2)
            before = await everything(history)
            with database.crashing(), pytest.raises(Crash):
                await history.record(Stream.LOG, facts[2:], after=2, upto=7)
            assert await everything(history) == before

        async with database.open() as history:
            assert await everything(history) == before
            await history.record(Stream.LOG, facts[2:], after=2, upto=7)
            assert await everything(history) == await in_one_batch(empty_database, facts)


async def in_one_batch(empty_database: EmptyDatabase, facts: Sequence[Recorded[Message]]) -> Rows:
    async with empty_database() as database, database.open() as history:
        await record_all(history, facts)
        return await everything(history)


def _letters_come_first(facts: Sequence[Message]) -> bool:
    """A dead letter is resolved only once it is kept: the guard of its scope sees to that."""
    kept: set[str] = set()
    for fact in facts:
        if isinstance(fact, Resolved) and fact.id not in kept:
            return False
        if isinstance(fact, DeadLettered):
            kept.add(fact.id)
    return True


any_facts = (
    st.lists(
        st.sampled_from([fact for execution_id in "123" for fact in facts_of(execution_id).values()]),
        min_size=1,
        max_size=30,
    )
    .filter(_letters_come_first)
    .map(recorded)
)


@settings(deadline=None, max_examples=examples(20))
@given(facts=any_facts, data=st.data())
async def test_any_split_into_batches_gives_the_same_rows(
    empty_database: EmptyDatabase, facts: list[Recorded[Message]], data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(facts))))
    async with empty_database() as database, database.open() as history:
        for after, upto in pairwise(sorted({0, *cuts, len(facts)})):
            batch = facts[after:upto]
            await history.record(Stream.LOG, batch, after=after, upto=upto)
            with pytest.raises(SequenceConflict):
                await history.record(Stream.LOG, batch, after=after, upto=upto)
        assert await everything(history) == await in_one_batch(empty_database, facts)


async def test_every_list_follows_an_execution_across_batches(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:

        async def is_listed(query: ExecutionQuery) -> bool:
            return bool((await history.executions(query)).rows)

        # The first fact does not say how it was triggered, nor which tags it has.
        for fact in recorded(story("started", "admitted", "retry", "again", "failed")):
            await history.record(Stream.LOG, [fact], after=fact.sequence - 1, upto=fact.sequence)
            (row,) = (await history.executions()).rows
            for status in get_args(Status):
                assert await is_listed(ExecutionQuery(status=status)) == (row.status == status)
            for trigger in ("unknown", "cron"):
                assert await is_listed(ExecutionQuery(trigger=trigger)) == (row.trigger == trigger)
            assert await is_listed(ExecutionQuery(tag="all")) == bool(row.tags)
            assert await is_listed(ExecutionQuery(error="boom")) == (row.error is not None)
            assert await is_listed(ExecutionQuery(sort="longest")) == (row.duration_ms is not None)
            assert row.started_at is not None
            assert await is_listed(ExecutionQuery(sort="last-started"))
        (row,) = (await history.executions()).rows
        assert (row.status, row.trigger, row.tags, row.duration_ms) == (
            "failed",
            "cron",
            ("nightly", "all", "all"),
            4000,
        )


async def test_any_split_of_a_ledger_gives_equal_jobs(empty_database: EmptyDatabase) -> None:
    definition = JobDefinition(name="nightly", schedule="0 3 * * *", function="f")
    other = definition.model_copy(update={"description": "Nightly", "function": "g"})
    at = [NOON + timedelta(days=day, hours=15) for day in range(5)]
    passed = Passed(job="nightly", start=at[0], until=at[1], reason="paused", count=1, definition=1)
    facts = recorded(
        [
            Defined(job="nightly", definition=definition, by=Actor(identity="ann")),
            Due(job="nightly", scheduled_time=at[0], definition=1),
            Paused(job="nightly", definition=1),
            passed,
            Resumed(job="nightly", definition=1),
            Due(job="nightly", scheduled_time=at[2], definition=1),
            Defined(job="nightly", definition=other),
            Due(job="nightly", scheduled_time=at[3], definition=7),
            Deleted(job="nightly"),
        ]
    )

    async def jobs(size: int) -> list[Sequence[JobRow]]:
        """As they are in the end, and before that."""
        async with empty_database() as database, database.open() as history:
            seen = []
            for kept in (facts[:-1], facts[-1:]):
                for first in range(0, len(kept), size):
                    batch = kept[first : first + size]
                    after, upto = batch[0].sequence - 1, batch[-1].sequence
                    await history.record(Stream.LEDGER, batch, after=after, upto=upto)
                seen.append(await history.jobs())
            return seen

    whole = await jobs(len(facts))
    assert [await jobs(size) for size in (1, 2, 3)] == [whole] * 3


async def test_two_recorders_lose_and_double_nothing(empty_database: EmptyDatabase) -> None:
    facts = recorded([fact for n in range(40) for fact in story(*A_FAILURE, execution_id=f"{n:02}")])

    async def record_by(history: History, size: int) -> int:
        won = 0
        while (after := await history.offset(Stream.LOG)) < len(facts):
            batch = facts[after : after + size]
            try:
                await history.record(Stream.LOG, batch, after=after, upto=after + len(batch))
            except SequenceConflict:
                continue
            won += len(batch)
        return won

    async with empty_database() as database, database.open() as one, database.open() as other:
        assert sum(await asyncio.gather(record_by(one, 3), record_by(other, 5))) == len(facts)
        assert await everything(one) == await everything(other) == await in_one_batch(empty_database, facts)


async def test_streams_of_another_installation_are_recorded_from_start(
    empty_database: EmptyDatabase,
) -> None:
    async with empty_database() as database, database.open("one") as one, database.open("other") as other:
        await one.record(Stream.LOG, recorded(story("admitted", execution_id="1")), after=0, upto=7)
        assert (await one.offset(Stream.LOG), await other.offset(Stream.LOG)) == (7, 0)
        await other.record(Stream.LOG, recorded(story("admitted", execution_id="2")), after=0, upto=3)
        assert (await one.offset(Stream.LOG), await other.offset(Stream.LOG)) == (7, 3)
        assert await one.count() == 2


async def test_totals_grow_with_the_rows_and_survive_them(empty_database: EmptyDatabase) -> None:
    facts = [*story(*A_FAILURE, execution_id="1"), *story(*A_SUCCESS, execution_id="2")]
    async with empty_database() as database:
        async with database.open() as history:
            assert await history.totals() == {}
            await record_all(history, recorded(facts))
        async with database.open() as history:
            totals = await history.totals()
            assert totals is not None
            assert totals[Total("executions", "nightly", "cron", "failed")] == 1
            assert totals[Total("executions", "nightly", "cron", "completed")] == 1
            assert totals[Total("retries", "nightly")] == totals[Total("dead_letters", "nightly")] == 1
            assert totals[Total("steps", "nightly", "next", "cancelled")] == 1
            assert totals[Total("steps", "nightly", "next", "completed")] == 1
            assert totals[Total("duration", "nightly", "5")] == 2
            assert totals[Total("duration_ms", "nightly")] == 5_000
            day = timedelta(days=1)
            await history.record(
                Stream.LEDGER,
                recorded([Defined(job="nightly", definition=JobDefinition(name="nightly", function="f"))]),
                after=0,
                upto=1,
            )
            while await history.expire(NOON + 3 * day, after=day):
                pass
            assert await history.execution("1") is None
            assert await history.totals() == totals


async def test_id_of_another_job_changes_no_row(empty_database: EmptyDatabase) -> None:
    """A caller may bring the id of another job's execution: the row is that of the job that has it first."""
    ours = Admitted(job="ours", execution_id="1", scheduled_time=NOON, trigger="cron", plan=plan())
    theirs = ours.changed(job="theirs", trigger="api")
    end: dict[str, Any] = {"execution_id": "1", "scheduled_time": NOON}
    other = ours.changed(execution_id="2")
    batches: list[list[Message]] = [
        [ours],
        [other, theirs],
        [Failed(job="theirs", trigger="api", error=BOOM, **end)],
        [Completed(job="ours", trigger="cron", **end)],
    ]
    async with empty_database() as database, database.open() as history, database.open() as successor:
        for number, facts in enumerate(batches):
            recorder = successor if number % 2 else history  # it has no row in memory
            await recorder.record(Stream.LOG, recorded(facts), after=number, upto=1 + number, opens=number != 2)
            row = await history.execution("1")
            assert row is not None
            expected = ("ours", "cron", None, "completed" if number == 3 else "pending")
            assert (row.job_name, row.trigger, row.error, row.status) == expected
        assert await history.count() == 2
        totals = await history.totals()
        assert totals is not None
        ends = {total: count for total, count in totals.items() if total.kind == "executions" and total.job}
        assert sorted((total.job, total.status, count) for total, count in ends.items()) == [
            ("ours", "completed", 1),
            ("theirs", "failed", 1),
        ]


async def test_new_executions_are_written_without_a_look() -> None:
    engine, statements = empty_engine(), list[str]()
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    history = SqlHistory(engine, threads=0)
    try:
        begun = [fact for n in range(1_200) for fact in story("admitted", execution_id=str(n))]
        await history.record(Stream.LOG, recorded(begun), after=0, upto=len(begun))
        assert [text for text in statements if "FROM scheduler_executions" in text] == []
        assert len([text for text in statements if "scheduler_executions " in text]) == 1  # one for all rows
        assert await history.count() == 1_200
    finally:
        await history.close()


async def test_ends_are_totals_also_without_rows(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LOG, recorded(story(*A_FAILURE)), after=0, upto=7, opens=False)
        totals = await history.totals()
        assert totals is not None
        assert totals[Total("executions", "nightly", "cron", "failed")] == totals[Total("retries", "nightly")] == 1
        assert totals[Total("dead_letters", "")] == 1


async def test_missed_instants_are_totals(empty_database: EmptyDatabase) -> None:
    at = [NOON, NOON + timedelta(hours=3)]
    missed = Passed(job="nightly", start=at[0], until=at[1], reason="missed", count=3, definition=1)
    paused = missed.model_copy(update={"reason": "paused"})
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LEDGER, recorded([missed, paused, missed]), after=0, upto=3)
        assert await history.totals() == {Total("missed", "nightly", "missed"): 6}


@st.composite
def lives(draw: st.DrawFn) -> list[Recorded[Message]]:
    """Events of three executions in any order that the guards of their scopes allow."""
    stories = st.sampled_from([A_SUCCESS, A_FAILURE, ("skipped",), ("admitted", "cancelled"), ("refused",)])
    rest = [story(*draw(stories), execution_id=execution_id) for execution_id in "123"]
    facts = []
    while any(rest):
        facts.append(draw(st.sampled_from([life for life in rest if life])).pop(0))
    return recorded(facts)


@settings(deadline=None, max_examples=examples(10))
@given(facts=lives(), data=st.data())
async def test_any_split_into_batches_gives_the_same_totals(
    empty_database: EmptyDatabase, facts: list[Recorded[Message]], data: st.DataObject
) -> None:
    async def totals(cuts: set[int]) -> object:
        async with empty_database() as database, database.open() as one, database.open() as other:
            for history, (after, upto) in zip(
                cycle((one, other)), pairwise(sorted({0, *cuts, len(facts)})), strict=False
            ):
                await history.record(Stream.LOG, facts[after:upto], after=after, upto=upto)
                with pytest.raises(SequenceConflict):
                    await history.record(Stream.LOG, facts[after:upto], after=after, upto=upto)
            return await one.totals()

    assert await totals(data.draw(st.sets(st.integers(1, len(facts))))) == await totals(set())


async def test_totals_are_hidden_until_a_rebuild_is_complete(empty_database: EmptyDatabase) -> None:
    facts = recorded(story(*A_FAILURE))
    async with empty_database() as database, database.open() as history:
        await record_all(history, facts)
        before = await history.totals()
        await history.forget()
        assert await history.totals() is None
        await history.record(Stream.LOG, facts[:3], after=0, upto=3)
        await history.forget()  # the first rebuild was interrupted
        await history.record(Stream.LOG, facts[:5], after=0, upto=5)
        assert await history.totals() is None
        await history.record(Stream.LOG, facts[5:], after=5, upto=len(facts))
        assert await history.totals() == before != {}


async def test_names_of_unregistered_jobs_are_limited(empty_database: EmptyDatabase) -> None:
    kept, beyond = MAX_UNREGISTERED_JOBS, 5

    def refused(numbers: range) -> list[Recorded[Message]]:
        return recorded([facts_of(f"{n:05}", f"job-{n:05}")["skipped"].changed(definition=0) for n in numbers])

    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LOG, refused(range(kept - 1)), after=0, upto=1)
        await history.record(Stream.LOG, refused(range(kept - 1, kept + beyond)), after=1, upto=2)
        await history.record(Stream.LOG, refused(range(9_000, 9_001)), after=2, upto=3)
        totals = await history.totals()
        assert totals is not None
        assert totals[Total("executions", OTHER, "cron", "skipped")] == beyond + 1
        assert totals[Total("executions", "", "cron", "skipped")] == kept + beyond + 1
        assert len(totals) == kept + 2

        day = timedelta(days=1)
        while await history.expire(NOON + 3 * day, after=day):
            pass
        assert await history.totals() == {
            Total("executions", OTHER, "cron", "skipped"): beyond + 1,
            Total("executions", "", "cron", "skipped"): kept + beyond + 1,
        }
        # The names are free again.
        await history.record(Stream.LOG, refused(range(9_001, 9_002)), after=3, upto=4)
        totals = await history.totals()
        assert totals is not None
        assert totals[Total("executions", "job-09001", "cron", "skipped")] == 1


WIDTHS = [timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=45), timedelta(days=1)]
DAY = (NOON - timedelta(hours=12), NOON + timedelta(hours=12))


def at(facts: Sequence[Message], time: datetime) -> list[Message]:
    """The facts of an execution that is scheduled at another time."""
    return [with_known(fact, scheduled_time=time) for fact in facts]


async def counted(history: History, width: timedelta, job: str = "nightly") -> dict[tuple[object, ...], int]:
    """Return the counts of a day."""
    rows = await history.counts(CountQuery(job=job, since=DAY[0], until=DAY[1], width=width))
    counts = Counter[tuple[object, ...]]()
    for row in rows:
        counts[row.start, row.definition, row.trigger, row.status] += row.total
    return dict(counts)


async def recounted(history: History, width: timedelta, job: str = "nightly") -> dict[tuple[object, ...], int]:
    """Return what the rows say."""
    rows = (await history.executions(ExecutionQuery(job=job, since=DAY[0], until=DAY[1], limit=1_000))).rows
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return dict(
        Counter(
            (
                epoch + (row.scheduled_time - epoch) // width * width,
                row.definition,
                row.trigger,
                "announced" if row.reason == "disabled" else row.status,
            )
            for row in rows
        )
    )


@settings(deadline=None, max_examples=examples(15))
@given(
    facts=any_facts,
    data=st.data(),
    minutes=st.lists(st.integers(-700, 700), min_size=3, max_size=3),
    width=st.sampled_from(WIDTHS),
)
async def test_counts_equal_the_rows(
    empty_database: EmptyDatabase,
    facts: list[Recorded[Message]],
    data: st.DataObject,
    minutes: list[int],
    width: timedelta,
) -> None:
    times = {str(n): NOON + timedelta(minutes=m) for n, m in enumerate(minutes, 1)}
    moved = recorded(
        at([fact.message], times[fact.message.execution_id])[0]
        if isinstance(fact.message, ExecutionFact)
        else fact.message
        for fact in facts
    )
    cuts = data.draw(st.sets(st.integers(1, len(facts))))
    async with empty_database() as database, database.open() as one, database.open() as other:
        for history, (after, upto) in zip(cycle((one, other)), pairwise(sorted({0, *cuts, len(facts)})), strict=False):
            await history.record(Stream.LOG, moved[after:upto], after=after, upto=upto)
            assert await counted(history, width) == await recounted(history, width)
        while await one.expire(NOON + timedelta(days=3), after=timedelta(days=1)):
            assert await counted(one, width) == await recounted(one, width)


async def test_counts_are_of_one_job_and_time(empty_database: EmptyDatabase) -> None:
    late, early = NOON + timedelta(hours=12), NOON - timedelta(hours=12)
    facts = [
        *at(story(*A_SUCCESS, execution_id="1"), early),
        *at(story(*A_FAILURE, execution_id="2"), late - timedelta(seconds=1)),
        *at(story(*A_SUCCESS, execution_id="3"), late),
        *story(*A_SUCCESS, execution_id="4", job="other"),
        *story("skipped", execution_id="5"),
        *story("admitted", "dispatched", execution_id="6"),
        *story("announced", execution_id="7"),
    ]
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))
        for width in (timedelta(seconds=1), timedelta(minutes=5), timedelta(hours=6)):
            counts = Counter[str]()
            for (_, definition, trigger, status), number in (await counted(history, width)).items():
                assert (definition, trigger) == (1, "cron")
                counts[str(status)] += number
            assert counts == {"completed": 1, "failed": 1, "skipped": 1, "announced": 1, "pending": 1}


@pytest.mark.parametrize(
    ("field", "width", "shift"),
    [
        ("width", timedelta(), timedelta()),
        ("width", timedelta(seconds=1.5), timedelta()),
        ("width", timedelta(minutes=7), timedelta()),
        ("since", timedelta(minutes=5), timedelta(minutes=1)),
        ("until", timedelta(minutes=5), timedelta(days=1)),
    ],
)
def test_invalid_query_of_counts_is_refused(field: str, width: timedelta, shift: timedelta) -> None:
    with pytest.raises(InvalidQuery) as refused:
        CountQuery(job="nightly", since=DAY[0] + shift, until=DAY[1], width=width)
    assert refused.value.field == field


async def test_passed_spans_overlap_and_expire(empty_database: EmptyDatabase) -> None:
    hour = timedelta(hours=1)
    brief = JobDefinition(name="brief", function="f", retention=3_600.0)

    def passed(
        start: datetime, until: datetime, reason: str = "missed", job: str = "nightly", count: int = 3
    ) -> Passed:
        return Passed.model_validate(
            {"job": job, "start": start, "until": until, "reason": reason, "count": count, "definition": 1}
        )

    facts = [
        passed(NOON, NOON + 2 * hour),
        passed(NOON + 2 * hour, NOON + 3 * hour, "superseded", count=1),
        passed(NOON + 2 * hour, NOON + 3 * hour, "paused"),
        passed(NOON + 3 * hour, NOON + 4 * hour, "superseded", count=0),
        passed(NOON, NOON + hour, "superseded", job="brief"),
        Defined(job="brief", definition=brief),
    ]
    first = PassedSpan(NOON, NOON + 2 * hour, "missed", 3, 1)
    second = PassedSpan(NOON + 2 * hour, NOON + 3 * hour, "superseded", 1, 1)
    async with empty_database() as database, database.open() as history:
        await history.record(Stream.LEDGER, recorded(facts), after=0, upto=len(facts))

        async def spans(since: float, until: float, job: str = "nightly", limit: int = 10) -> Sequence[PassedSpan]:
            return await history.passed(job, NOON + since * hour, NOON + until * hour, limit=limit)

        assert await spans(-9, 9) == [first, second]
        assert await spans(-9, 9, limit=1) == [first]
        assert await spans(2, 2.5) == [first, second]
        assert await spans(2.1, 9) == [second]
        assert await spans(-9, 2) == [first]
        assert len(await spans(-9, 9, "brief")) == 1
        assert await history.expire(NOON + 3 * hour, after=10 * hour) == 1
        assert (await spans(-9, 9, "brief"), await spans(-9, 9)) == ([], [first, second])
        assert await history.expire(NOON + 12.5 * hour, after=10 * hour) == 1
        assert await spans(-9, 9) == [second]
        assert await history.expire(NOON + 99 * hour, after=10 * hour) == 1
        assert await history.expire(NOON + 99 * hour, after=10 * hour) == 0


async def test_durations_of_spans_are_limited(empty_database: EmptyDatabase) -> None:
    minute = timedelta(minutes=1)
    facts = [fact for n in range(5) for fact in at(story(*A_SUCCESS, execution_id=str(n)), NOON + n * minute)]
    facts += story("admitted", execution_id="9") + story(*A_SUCCESS, execution_id="10", job="other")
    spans = [(NOON, NOON + 3 * minute), (NOON + 3 * minute, NOON + 9 * minute), (NOON + 9 * minute, NOON + 10 * minute)]
    async with empty_database() as database, database.open() as history:
        await record_all(history, recorded(facts))
        assert await history.durations("nightly", spans, limit=9) == [
            [Duration(1, 2_000)] * 3,
            [Duration(1, 2_000)] * 2,
            [],
        ]
        assert await history.durations("nightly", spans, limit=2) == [
            [Duration(1, 2_000)] * 2,
            [Duration(1, 2_000)] * 2,
            [],
        ]
