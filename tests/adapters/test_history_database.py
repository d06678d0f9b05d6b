"""The database of a history: its URL, its errors, and the creation of its tables."""

import asyncio
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from redis.asyncio import Redis as RedisClient
from sqlalchemy import Connection, create_mock_engine, event, text

from tests.conformance.test_history import A_FAILURE, A_SUCCESS, everything, story
from tests.databases import PostgreSql, postgresql, redis
from tests.domain.given import NOON, recorded
from tocsin.adapters.history import open_history
from tocsin.adapters.sql import migration
from tocsin.adapters.sql.engine import connect
from tocsin.adapters.sql.history import dead_letters
from tocsin.adapters.sql.migration import REVISIONS, SCRIPTS, VERSION_TABLE, migrate
from tocsin.adapters.sql.summaries import letter_groups
from tocsin.adapters.sql.tables import metadata
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Admitted, Defined
from tocsin.ports import HistoryUnavailable
from tocsin.ports.queries import DeadLetterQuery
from tocsin.subjects import Stream

FACTS = recorded(story(*A_FAILURE))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, server: PostgreSql) -> str:
    return f"sqlite:///{tmp_path / 'history.db'}" if request.param == "sqlite" else server.new_database()


async def recorded_in(url: str) -> object:
    """Return the rows of an empty database after some events are recorded."""
    async with open_history(url, installation="", max_connections=2) as history:
        if not await history.offset(Stream.LOG):
            await history.record(Stream.LOG, FACTS, after=0, upto=len(FACTS))
        return await everything(history)


async def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    """A history has inputs and results, also if the file was removed meanwhile."""
    path = tmp_path / "history.db"
    async with open_history(f"sqlite:///{path}", installation="", max_connections=2) as history:
        for _ in range(2):
            with suppress(HistoryUnavailable):
                await history.offset(Stream.LOG)
            await history.offset(Stream.LOG)
            check_modes(tmp_path)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_existing_files_keep_no_rights_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    """The files of another user stay as they are, and are used."""
    url, files = f"sqlite:///{tmp_path / 'history.db'}", ("history.db", "history.db-wal", "history.db-shm")
    async with open_history(url, installation="", max_connections=2) as first:
        await first.record(Stream.LOG, FACTS, after=0, upto=len(FACTS))
        for name in files:
            (tmp_path / name).chmod(0o664)
        if not is_ours:
            monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
        async with open_history(url, installation="", max_connections=2) as second:
            assert await second.offset(Stream.LOG) == len(FACTS)
            modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in files}
    assert modes == dict.fromkeys(files, 0o600 if is_ours else 0o664)


def check_modes(folder: Path) -> None:
    """Check the rights of the files of a history, and remove them."""
    modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert {"history.db", "history.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    for file in folder.iterdir():
        file.unlink()


def test_the_revisions_are_those_that_the_scripts_have() -> None:
    scripts = ScriptDirectory(str(SCRIPTS))
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(REVISIONS))


def test_the_migrations_make_the_tables_that_are_used(url: str) -> None:
    engine = connect(url)
    migrate(engine)
    with engine.connect() as connection:
        found = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": VERSION_TABLE})
        assert compare_metadata(found, metadata) == []
    engine.dispose()


def test_first_revision_keeps_its_tables() -> None:
    """A change to the tables needs a second revision, and the first a copy of the current tables."""
    made = list[Any]()
    engine = create_mock_engine("postgresql+psycopg://", lambda statement, *_, **__: made.append(statement))
    metadata.create_all(engine, checkfirst=False)
    statements = sorted(str(statement.compile(dialect=engine.dialect)) for statement in made)
    digest = hashlib.sha256("\n".join(statements).encode()).hexdigest()
    assert digest == "1f46ff2580be09a84be64b0122edc36f12645724969f798b513041918ca96684"


async def test_several_processes_open_an_empty_database_together(url: str) -> None:
    first, *others = await asyncio.gather(*(asyncio.to_thread(lambda: migrate(connect(url))) for _ in range(6)))
    assert (first, *others) == (None,) * 6
    await recorded_in(url)


async def test_foreign_tables_are_left_alone(url: str) -> None:
    engine = connect(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE scheduler_executions (theirs TEXT)"))
        connection.execute(text("INSERT INTO scheduler_executions VALUES ('kept')"))
    with pytest.raises(HistoryUnavailable, match="scheduler_executions"):
        migrate(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT theirs FROM scheduler_executions")).scalar_one() == "kept"
    engine.dispose()


def test_what_a_newer_version_migrated_is_refused(url: str) -> None:
    engine = connect(url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = 'r9999'"))  # noqa: S608 - our own name
    with pytest.raises(HistoryUnavailable) as refused:
        migrate(engine)
    assert (refused.value.code, "r9999" in str(refused.value)) == ("history-too-new", True)
    engine.dispose()


def test_a_migration_that_is_cut_off_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = connect(url)
    upgrade = migration.upgrade

    def cut_off(*arguments: object) -> None:
        upgrade(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(migration, "upgrade", cut_off)
    with pytest.raises(KeyboardInterrupt):
        migrate(engine)
    with engine.connect() as connection:
        assert not engine.dialect.has_table(connection, "scheduler_executions")
    monkeypatch.undo()
    migrate(engine)
    engine.dispose()


async def test_postgresql_has_the_columns_of_hip_62(server: PostgreSql) -> None:
    url = server.new_database()
    await recorded_in(url)
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
        ).fetchall()
    columns = {(table, column): kind for table, column, kind in found}
    time = "timestamp with time zone"
    executions = {
        "id": "uuid",
        "job_name": "text",
        "execution_id": "text",
        "trigger": "text",
        "started_at": time,
        "completed_at": time,
        "status": "text",
        "duration_ms": "integer",
        "attempt": "integer",
        "error": "text",
        "dag_state": "jsonb",
    }
    dead_letters = {
        "id": "uuid",
        "job_name": "text",
        "execution_id": "text",
        "attempts": "integer",
        "last_error": "text",
        "input": "jsonb",
        "first_attempt": time,
        "last_attempt": time,
        "resolved": "boolean",
    }
    for table, expected in (("scheduler_executions", executions), ("scheduler_dead_letters", dead_letters)):
        assert {name: columns[table, name] for name in expected} == expected


async def test_the_views_of_scratchbird(url: str) -> None:
    await recorded_in(url)
    runs = (
        "SELECT job_run_uuid, job_name, scheduled_time, started_at, completed_at, state, result_message, rows_affected, "
        "retry_count, error_code FROM {} ORDER BY started_at DESC LIMIT 10"
    )
    jobs = (
        "SELECT job_uuid, job_name, job_class, schedule_type, cron_expression, next_run_time, state FROM {} "
        "ORDER BY next_run_time ASC"
    )
    engine = connect(url)
    with engine.connect() as connection:
        row = connection.execute(text(runs.format("sys_job_runs"))).one()
        assert connection.execute(text(jobs.format("sys_jobs"))).all() == []
        if engine.dialect.name == "postgresql":
            assert connection.execute(text(runs.format("sys.job_runs"))).one() == row
            assert connection.execute(text(jobs.format("sys.jobs"))).all() == []
    engine.dispose()
    assert (row.job_name, row.state, row.result_message) == ("nightly", "FAILED", "ValueError: boom")
    assert (row.rows_affected, row.retry_count, row.error_code) == (None, 1, "ValueError")


async def test_view_shows_rows_affected_by_a_statement(url: str) -> None:
    facts = story(*A_SUCCESS)
    result = {"rows_affected": 3, "message": "Query executed successfully, 3 rows affected"}
    facts[-1] = facts[-1].changed(result=result)
    async with open_history(url, installation="", max_connections=2) as history:
        await history.record(Stream.LOG, recorded(facts), after=0, upto=len(facts))
    engine = connect(url)
    with engine.connect() as connection:
        row = connection.execute(text("SELECT state, rows_affected, result_message FROM sys_job_runs")).one()
    engine.dispose()
    assert tuple(row) == ("COMPLETED", 3, result["message"])


JOBS = (
    {"name": "extract", "function": "f"},
    {
        "name": "calls",
        "procedure": {"connection": "dwh", "name": "p"},
        "schedule": "@daily",
        "depends_on": ["extract", "gone"],
    },
    {"name": "states", "sql": {"connection": "dwh", "statement": "SELECT 1"}, "job_class": "LEADER_ONLY"},
    {"name": "runs", "command": ["true"]},
)
AGENT = "01890f3e-0000-7000-8000-000000000001"


async def given_jobs(url: str) -> None:
    """Record the jobs, and a run of one of them that an agent has."""
    definitions = [JobDefinition.model_validate(job) for job in JOBS]
    defined = recorded([Defined(job=each.name, definition=each) for each in definitions])
    facts = story(*A_SUCCESS, job="extract")
    facts[2] = facts[2].changed(agent=AGENT)
    async with open_history(url, installation="", max_connections=2) as history:
        await history.record(Stream.LEDGER, defined, after=0, upto=len(defined))
        await history.record(Stream.LOG, recorded(facts), after=0, upto=len(facts))


async def test_views_show_types_agents_and_dependencies(url: str) -> None:
    await given_jobs(url)
    engine = connect(url)
    prefixes = ("sys_", "sys.") if engine.dialect.name == "postgresql" else ("sys_",)
    with engine.connect() as connection:
        for prefix in prefixes:
            jobs = connection.execute(text(f"SELECT job_name, job_class, job_type FROM {prefix}jobs ORDER BY 1"))  # noqa: S608
            assert [tuple(row) for row in jobs] == [
                ("calls", "LOCAL_SAFE", "PROCEDURE"),
                ("extract", "LOCAL_SAFE", "EXTERNAL"),
                ("runs", "LOCAL_SAFE", "EXTERNAL"),
                ("states", "LEADER_ONLY", "SQL"),
            ]
            runs = connection.execute(text(f"SELECT job_name, assigned_node_uuid FROM {prefix}job_runs"))  # noqa: S608
            assert [tuple(row) for row in runs] == [("extract", AGENT)]
            query = (
                f"SELECT d.job_name, j.job_name, d.depends_on_job_name, d.depends_on_job_uuid = o.job_uuid "  # noqa: S608
                f"FROM {prefix}job_dependencies d JOIN {prefix}jobs j ON j.job_uuid = d.job_uuid "
                f"LEFT JOIN {prefix}jobs o ON o.job_name = d.depends_on_job_name ORDER BY 3"
            )
            rows = connection.execute(text(query))
            assert [tuple(row) for row in rows] == [
                ("calls", "calls", "extract", True),
                ("calls", "calls", "gone", None),
            ]
    engine.dispose()


async def test_view_names_shards_and_the_right_registration(url: str) -> None:
    """A run that ended before the job was registered again belongs to no registered job."""
    registered_at = NOON + timedelta(seconds=7)
    again = Defined(job="nightly", definition=JobDefinition(name="nightly", function="f"), created_at=registered_at)
    before, after = story(*A_SUCCESS, execution_id="1"), story(*A_SUCCESS, execution_id="2")
    begun = after[0]
    assert isinstance(begun, Admitted)
    after[0] = begun.changed(plan=begun.plan.changed(shard="north"))
    async with open_history(url, installation="", max_connections=2) as history:
        await history.record(Stream.LOG, recorded([*before, *after]), after=0, upto=10)
        await history.record(Stream.LEDGER, recorded([again]), after=0, upto=1)
    engine = connect(url)
    with engine.connect() as connection:
        for prefix in ("sys_", "sys.") if engine.dialect.name == "postgresql" else ("sys_",):
            query = f"SELECT job_uuid, shard FROM {prefix}job_runs ORDER BY completed_at"  # noqa: S608
            rows = connection.execute(text(query)).all()
            [uuid] = connection.execute(text(f"SELECT job_uuid FROM {prefix}jobs")).scalars()  # noqa: S608
            assert str(uuid) == ids.job_id("nightly", registered_at)
            assert [tuple(row) for row in rows] == [(None, None), (uuid, "north")]
    engine.dispose()


def test_schema_of_another_application_stays(server: PostgreSql) -> None:
    """The recorder's user may make schemas, and nothing in the schema `sys` that exists."""
    administrator = server.new_database()
    database = administrator.rpartition("/")[2]
    server.execute("CREATE ROLE lodger LOGIN")
    server.execute(f"GRANT CREATE ON DATABASE {database} TO lodger")
    server.execute("GRANT CREATE ON SCHEMA public TO lodger", database=database)
    server.execute("CREATE SCHEMA sys", database=database)
    server.execute("CREATE TABLE sys.jobs (title text)", database=database)
    engine = connect(administrator.replace("tocsin@", "lodger@"))
    migrate(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM sys_job_runs")).all() == []
    engine.dispose()
    relations = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'sys'"
    with psycopg.connect(administrator) as connection:
        assert connection.execute(relations).fetchall() == [("jobs",)]


def test_view_of_other_columns_stays(server: PostgreSql) -> None:
    """A view of the same owner that PostgreSQL cannot replace is no obstacle."""
    database = server.new_database()
    name = database.rpartition("/")[2]
    server.execute("CREATE SCHEMA sys", database=name)
    server.execute("CREATE VIEW sys.job_runs AS SELECT 1 AS mine", database=name)
    engine = connect(database)
    migrate(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT mine FROM sys.job_runs")).scalars().all() == [1]
        assert connection.execute(text("SELECT * FROM sys.jobs")).all() == []
    engine.dispose()


async def test_groups_read_no_rows(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'history.db'}")
    migrate(engine)
    plans = list[str]()

    def explain(connection: Connection, _: object, statement: str, parameters: object, *__: object) -> None:
        if statement.startswith("SELECT"):
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # type: ignore[arg-type]
            plans.append("; ".join(str(row.detail) for row in rows if "dead_letters" in row.detail))

    with engine.connect() as connection:
        event.listen(connection, "before_cursor_execute", explain)
        for query in (DeadLetterQuery(unresolved=True), DeadLetterQuery()):
            letter_groups(connection, query=query, limit=10)
            letter_groups(connection, query=query, limit=10, by_definition=True)
        dead_letters(connection, DeadLetterQuery(job="a", pattern="x", unresolved=True))
    engine.dispose()
    of_unresolved, of_all, [listed] = plans[:3], plans[3:6], plans[6:]
    assert all("USING COVERING INDEX scheduler_dead_letters_groups" in plan for plan in of_unresolved)
    assert all("USING COVERING INDEX scheduler_dead_letters_of_group" in plan for plan in of_all)
    assert "USING INDEX scheduler_dead_letters_of_group (job_name=? AND error_pattern=?)" in listed


async def test_queries_of_the_docs_are_answered(url: str) -> None:
    defined = Defined(
        job="nightly",
        definition=JobDefinition(name="nightly", schedule="0 3 * * *", function="f"),
        created_at=NOON - timedelta(hours=1),
    )
    manual = [fact.changed(trigger="manual") for fact in story("admitted", execution_id="22")]
    before = [fact.changed(scheduled_time=NOON - timedelta(days=1)) for fact in story("admitted", execution_id="33")]
    async with open_history(url, installation="", max_connections=2) as history:
        await history.record(Stream.LEDGER, recorded([defined]), after=0, upto=1)
        facts = recorded([*story(*A_FAILURE), *manual, *before])
        await history.record(Stream.LOG, facts, after=0, upto=len(facts))
    page = (Path(__file__).parents[2] / "docs/how-to/other-clients.md").read_text(encoding="utf-8")
    jobs, runs = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    engine = connect(url)
    with engine.connect() as connection:
        [job] = connection.execute(text(jobs)).all()
        [run] = connection.execute(text(runs)).all()
        started = {row.state: row.started_at for row in connection.execute(text("SELECT * FROM sys_job_runs"))}
    engine.dispose()
    assert (job.job_name, job.schedule_type, job.run_count, job.error_count) == ("nightly", "RECURRING", 1, 1)
    assert (run.state, run.result_message) == ("FAILED", "ValueError: boom")
    assert started["PENDING"] is None
    assert started["FAILED"] is not None


@pytest.mark.parametrize(
    ("url", "code", "value"),
    [
        ("mysql://h/d", "history-url-invalid", '"mysql"'),
        ("postgresql+asyncpg://h/d", "history-url-invalid", '"postgresql+asyncpg"'),
        ("history.db", "history-url-invalid", '"history.db"'),
        ("postgresql://h:port/d", "history-url-invalid", "'port'"),
        ("sqlite:////proc/no/history.db", "history-url-invalid", "/proc/no"),
        ("sqlite:////proc/history.db", "history-unavailable", "sqlite:////proc/history.db"),
        ("postgresql://u:secret@127.0.0.1:1/d", "history-unavailable", "postgresql://127.0.0.1:1/d"),
        ("postgresql://u:secret@127.0.0.1:1/d", "history-unavailable", "Connection refused"),
        ("redis://:secret@127.0.0.1:1/0", "history-unavailable", "redis://127.0.0.1:1/0"),
        ("redis://h:port/0", "history-url-invalid", "'port'"),
    ],
)
async def test_database_errors_are_explained(url: str, code: str, value: str) -> None:
    with pytest.raises(HistoryUnavailable) as caught:
        await recorded_in(url)
    assert caught.value.code == code
    assert value in str(caught.value)
    assert "`database.url`" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_said_in_words(server: PostgreSql) -> None:
    hba = server.folder / "data" / "pg_hba.conf"
    kept = hba.read_text()
    server.execute("CREATE ROLE ann LOGIN PASSWORD 'right'")
    hba.write_text(f"host all ann all scram-sha-256\n{kept}")
    server.execute("SELECT pg_reload_conf()")
    url = server.new_database().replace("tocsin@", "ann:wrong@")
    with pytest.raises(HistoryUnavailable) as refused:
        await recorded_in(url)
    assert "password authentication failed" in str(refused.value)
    assert "wrong" not in str(refused.value)


async def test_file_that_is_not_a_database_is_explained(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_text("not a database, by any means" * 100)
    with pytest.raises(HistoryUnavailable, match="file is not a database"):
        await recorded_in(f"sqlite:///{tmp_path / 'history.db'}")


async def test_redis_errors_are_explained() -> None:
    with redis() as server:
        async with RedisClient.from_url(server.url()) as client:
            await client.config_set("requirepass", "right")
            wrong = server.url().replace("redis://", "redis://:wrong@")
            with pytest.raises(HistoryUnavailable) as refused:
                await recorded_in(wrong)
            assert "invalid username-password pair" in str(refused.value)
            assert "wrong" not in str(refused.value)

            right = server.url().replace("redis://", "redis://:right@")
            assert await recorded_in(right) == await recorded_in(right)
        async with RedisClient.from_url(right) as client:
            await client.set("tocsin:history:schema", 99)
        with pytest.raises(HistoryUnavailable) as newer:
            await recorded_in(right)
        assert newer.value.code == "history-too-new"


async def test_a_redis_that_was_half_emptied_says_so() -> None:
    with redis() as server:
        before = await recorded_in(server.url())
        async with RedisClient.from_url(server.url()) as client:
            await client.set("tocsin:history:place::LOG", -1)
        async with open_history(server.url(), installation="", max_connections=2) as history:
            with pytest.raises(HistoryUnavailable) as incomplete:
                await history.offset(Stream.LOG)
            assert incomplete.value.code == "history-incomplete"
            await history.forget()
        assert await recorded_in(server.url()) == before


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
async def test_postgresql_is_known_by_each_of_its_names(server: PostgreSql, scheme: str) -> None:
    await recorded_in(server.new_database().replace("postgresql", scheme))


async def test_connections_stay_within_the_settings(server: PostgreSql) -> None:
    url = server.new_database()
    name = url.rpartition("/")[2]
    async with open_history(url, installation="", max_connections=3) as history:
        await asyncio.gather(*(history.count() for _ in range(50)))
        with psycopg.connect(server.url("postgres")) as connection:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            (connected,) = connection.execute(asked, [name]).fetchone() or (0,)
    assert 1 <= connected <= 3


async def test_a_file_is_read_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    url = f"sqlite:///{path}"
    await recorded_in(url)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM scheduler_executions")
        async with open_history(url, installation="", max_connections=2) as history:
            assert await history.count() == 1
        writer.execute("ROLLBACK")


@pytest.mark.parametrize("suffixes", [("", "-wal", "-shm"), ("",)])
async def test_removed_file_is_made_and_filled_again(tmp_path: Path, suffixes: tuple[str, ...]) -> None:
    """Otherwise connections write into a file without a name, which no reader sees."""
    file = tmp_path / "history.db"
    async with open_history(f"sqlite:///{file}", installation="", max_connections=2) as history:
        await history.record(Stream.LOG, FACTS, after=0, upto=len(FACTS))
        before = await everything(history)
        for suffix in suffixes:
            file.with_name(f"{file.name}{suffix}").unlink()
        with pytest.raises(HistoryUnavailable, match="removed or replaced"):
            await history.record(Stream.LOG, FACTS, after=len(FACTS), upto=len(FACTS) + 1)
        assert await history.offset(Stream.LOG) == 0
        await history.record(Stream.LOG, FACTS, after=0, upto=len(FACTS))
        assert await everything(history) == before
    assert await recorded_in(f"sqlite:///{file}") == before


async def test_restored_file_is_read_from_its_own_place(tmp_path: Path) -> None:
    file, copy = tmp_path / "history.db", tmp_path / "copy.db"
    backup = await recorded_in(f"sqlite:///{copy}")
    async with open_history(f"sqlite:///{file}", installation="", max_connections=2) as history:
        copy.replace(file)
        with pytest.raises(HistoryUnavailable, match="removed or replaced"):
            await history.offset(Stream.LOG)
        assert await everything(history) == backup
