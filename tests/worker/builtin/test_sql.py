"""Statements and procedures in PostgreSQL and SQLite."""

import asyncio
import resource
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from tests.databases import PostgreSql, postgresql
from tests.domain.given import ID, JOB
from tests.worker.builtin.sql_given import SqlBench, rows, until
from tests.worker.builtin.transaction_pooler import transaction_pooler
from tocsin.settings import SettingsError
from tocsin.settings.builtin import SqlConnection, SqlRules
from tocsin.worker.builtin.sql import ProcedureFunction, SqlFunction
from tocsin.worker.outcome import StopReason

JOB_UUID = "019ac5a6-cb80-7d43-8c3a-1f0f2a6f9e01"
CREATE = "CREATE TABLE days (day text, amount numeric CHECK (amount >= 0), more text)"
INSERT = "INSERT INTO days VALUES (:day, :amount, :more)"
SLEEP = "INSERT INTO days SELECT 'late', 1, pg_sleep(600)::text"
SQLITE_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, server: PostgreSql, tmp_path: Path) -> str:
    """Return the URL of a new database of each kind."""
    return server.new_database() if request.param == "postgresql" else f"sqlite:///{tmp_path}/own.db"


@pytest.fixture
async def bench(url: str) -> SqlBench:
    """Return a bench with a table."""
    await SqlBench(url).execute(CREATE)
    return SqlBench(url)


@pytest.fixture
def database(server: PostgreSql) -> str:
    """Return the URL of a new database in PostgreSQL, with a table."""
    url = server.new_database()
    rows(url, CREATE)
    return url


def affected(number: int, **more: object) -> dict[str, object]:
    return {"rows_affected": number, "message": f"Query executed successfully, {number} rows affected", **more}


async def test_statement_reports_rows_affected(bench: SqlBench) -> None:
    parameters = {"day": "{{ input.day }}", "amount": 1.5, "more": ["{{ input.n }}", None]}
    assert await bench.execute(INSERT, parameters=parameters, input={"day": "mon", "n": 5}) == affected(1)
    assert await bench.again().execute("UPDATE days SET amount = amount + 1") == affected(1)
    read = await bench.again().execute("SELECT day, amount, more FROM days", max_rows=5)
    assert read["rows_affected"] == 1
    assert [(row["day"], float(row["amount"]), row["more"]) for row in read["rows"]] == [("mon", 2.5, "[5,null]")]


async def test_table_without_rows_affects_none(bench: SqlBench) -> None:
    assert await bench.execute("CREATE TABLE more (a int)") == affected(0)


@pytest.mark.parametrize(
    "hostile", ["'; DROP TABLE days; --", "x' OR '1'='1", ":amount", "%s %(day)s", "{{ job }}", "\\"]
)
async def test_value_never_becomes_sql(hostile: str, bench: SqlBench) -> None:
    parameters = {"day": "{{ input.day }}", "amount": 1, "more": "fixed"}
    assert await bench.execute(INSERT, parameters=parameters, input={"day": hostile}) == affected(1)
    read = await bench.again().execute("SELECT day FROM days WHERE day LIKE '%' AND '12\\:30' <> ''", max_rows=5)
    assert read == affected(1, rows=[{"day": hostile}])


async def test_rows_are_counted_and_kept_if_wanted(bench: SqlBench) -> None:
    parts = ["WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)", "INSERT INTO days"]
    start = parts if bench.url.startswith("postgresql") else reversed(parts)
    await bench.execute(" ".join((*start, "SELECT 'day', i, '' FROM n")))
    select = "SELECT amount FROM days ORDER BY amount"
    assert await bench.again().execute(select) == affected(3_000)
    read = await bench.again().execute(select, max_rows=2)
    assert ([float(row["amount"]) for row in read["rows"]], read["is_cut"]) == ([1, 2], True)


async def test_large_rows_are_cut(bench: SqlBench) -> None:
    for _ in range(3):
        await bench.again().execute(INSERT, parameters={"day": "x" * 20_000, "amount": 1, "more": ""})
    read = await bench.again().execute("SELECT day FROM days", max_rows=10)
    assert (read["rows_affected"], len(read["rows"]), read["is_cut"]) == (3, 2, True)


LARGE = "SELECT repeat('x', 1000000) AS text, :n AS n FROM generate_series(1, 200)"


@pytest.mark.parametrize("max_rows", [0, 1])
@pytest.mark.parametrize(
    "statement",
    [
        LARGE,
        f"WITH gone AS (DELETE FROM days) {LARGE}",  # noqa: S608 - constants of this test
        f"with added AS (INSERT INTO days VALUES ('100% %(n)s', 1, '')) {LARGE}",  # noqa: S608 - as above
        "UPDATE days SET amount = :n RETURNING repeat('x', 1000000) AS text, amount",
        "INSERT INTO days SELECT day FROM days RETURNING repeat('x', 1000000) AS text",
        f"-- a comment\n{LARGE}",
    ],
)
async def test_large_results_use_little_memory(statement: str, max_rows: int, database: str) -> None:
    """A worker must not hold 200 MB."""
    rows(database, "INSERT INTO days SELECT i, i, '' FROM generate_series(1, 200) i")
    before = peak_memory()
    values = {"n": 7} if ":n" in statement else {}
    read = await SqlBench(database).execute(statement, parameters=values, max_rows=max_rows)
    assert read == (affected(200, rows=[], is_cut=True) if max_rows else affected(200))
    assert peak_memory() - before < 100_000_000


async def test_large_results_of_a_pooler_are_streamed(database: str) -> None:
    """A pooler may give each transaction another connection of the server."""
    async with transaction_pooler(database) as url:
        before = peak_memory()
        read = await SqlBench(url).execute(f"-- a comment\n{LARGE}", parameters={"n": 7})
        assert read == affected(200)
        assert peak_memory() - before < 100_000_000
        assert await SqlBench(url).execute("DELETE FROM days") == affected(0)
        wrong = await SqlBench(url).fail("SELECT :n FROM absent", parameters={"n": 7})
        assert wrong.type == "sql_state_42P01"


def peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1_024


@pytest.mark.parametrize("max_rows", [0, 2])
@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("INSERT INTO days VALUES ('a', :n, 'RETURNING')", None),
        ("WITH a AS (SELECT 1) INSERT INTO days VALUES ('a', :n, '')", None),
        ("INSERT INTO days VALUES ('a', :n, '') RETURNING day, amount::int AS n, amount::int AS n", 1),
        ("WITH a AS (SELECT CAST(:n AS int) AS n WHERE false) SELECT n FROM a", 0),
        ("VALUES (:n), (8)", 2),
    ],
)
async def test_rows_of_changes_are_kept_if_wanted(
    statement: str, count: int | None, max_rows: int, database: str
) -> None:
    read = await SqlBench(database).execute(statement, parameters={"n": 7}, max_rows=max_rows)
    assert (read["rows_affected"], "rows" in read) == (
        1 if count is None else count,
        bool(max_rows and count is not None),
    )
    if read.get("rows"):
        first = read["rows"][0]
        assert first == ({"column1": 7} if count == 2 else {"day": "a", "n": 7})


async def test_secret_is_in_no_result(bench: SqlBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter22")
    read = await bench.execute("SELECT :secret AS got", parameters={"secret": "${env:DB_PASSWORD}"}, max_rows=1)
    assert read["rows"] == [{"got": "${env:DB_PASSWORD}"}]


async def test_types_of_postgresql_become_json(database: str) -> None:
    statement = (
        "SELECT 1.10::numeric AS a, date '2026-01-02' AS b, '{\"x\": [1]}'::jsonb AS c, ARRAY[1, NULL] AS d, "
        "'\\xff00'::bytea AS e, 'NaN'::float8 AS f, interval '1 hour' AS g, 9223372036854775807 AS h, true AS i"
    )
    read = await SqlBench(database).execute(statement.replace("::", "\\:\\:"), max_rows=1)
    assert read["rows"] == [
        {
            "a": "1.10",
            "b": "2026-01-02",
            "c": {"x": [1]},
            "d": [1, None],
            "e": "ff00",
            "f": "nan",
            "g": "1:00:00",
            "h": 9223372036854775807,
            "i": True,
        }
    ]


async def test_database_without_an_encoding_keeps_texts(server: PostgreSql) -> None:
    """The driver returns bytes for the texts of a database in SQL_ASCII, unless the connection names an encoding."""
    server.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    bench = SqlBench(server.url("plain"))
    await bench.execute("CREATE TABLE days (day text)")
    text = "Größe \U0001f4a3"
    assert await bench.again().execute("INSERT INTO days VALUES (:day)", parameters={"day": text}) == affected(1)
    assert await bench.again().execute("SELECT day FROM days", max_rows=5) == affected(1, rows=[{"day": text}])
    rows(bench.url, "CREATE PROCEDURE refresh(INOUT day text) LANGUAGE plpgsql AS $$ BEGIN day := day || 'ö'; END $$")
    assert text + "ö" in str(await bench.again().call("refresh", [text]))
    await bench.again().execute("INSERT INTO days VALUES (E'\\xf6')")
    failure = await bench.again().fail("SELECT day FROM days", max_rows=5)
    assert (failure.type, failure.retryable) == ("sql_state_22021", False)
    latin = SqlBench(f"{bench.url}?client_encoding=latin1")
    assert (await latin.execute("SELECT day FROM days OFFSET 1", max_rows=5))["rows"] == [{"day": "ö"}]


async def test_text_is_bound_without_a_type(database: str) -> None:
    read = await SqlBench(database).execute(
        "SELECT count(*) AS n FROM days WHERE :day > date '2026-01-01' AND amount = :amount",
        max_rows=1,
        parameters={"day": "2026-02-01", "amount": "5"},
    )
    assert read["rows"] == [{"n": 0}]


async def test_failed_statement_leaves_nothing(bench: SqlBench) -> None:
    failure = await bench.fail("INSERT INTO days VALUES ('a', 1, ''), ('b', -1, '')")
    assert not failure.retryable
    assert await bench.again().execute("SELECT 1 FROM days") == affected(0)


async def test_transaction_names_its_execution(database: str) -> None:
    names = ("job", "job_uuid", "job_run_uuid", "step", "attempt", "fence")
    columns = ", ".join(f"current_setting('tocsin.{name}') AS {name}" for name in names)
    bench = SqlBench(database)
    read = await bench.execute(f"SELECT {columns}", max_rows=1, job_uuid=JOB_UUID)
    [(claim, _)] = await bench.claims()
    named = {"job": JOB, "job_uuid": JOB_UUID, "job_run_uuid": ID, "step": "main", "attempt": "1", "fence": str(claim)}
    assert read["rows"] == [named]
    rows(
        database,
        "CREATE PROCEDURE refresh() LANGUAGE sql AS "
        "$$ INSERT INTO days VALUES (current_setting('tocsin.job_uuid'), 1, current_setting('tocsin.job_run_uuid')) $$",
    )
    await SqlBench(database).call("refresh", [], job_uuid=JOB_UUID)
    assert rows(database, "SELECT day, more FROM days") == [(JOB_UUID, ID)]


async def test_unregistered_job_has_an_empty_uuid(database: str) -> None:
    read = await SqlBench(database).execute("SELECT current_setting('tocsin.job_uuid') AS job_uuid", max_rows=1)
    assert read["rows"] == [{"job_uuid": ""}]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_statement_does_not_end_its_transaction(statement: str, bench: SqlBench) -> None:
    failure = await bench.fail(statement)
    assert (failure.type, failure.retryable) == ("sql_transaction_ended", False)


@pytest.mark.parametrize(
    "rest",
    [
        "COMMIT; BEGIN; INSERT INTO days VALUES ('b', -1, '')",
        "COMMIT; BEGIN",
        "COMMIT AND CHAIN; SELECT 1 / 0",
        "SELECT '100%' LIKE '%\\:%'",
        "SELECT 1",
    ],
)
async def test_second_statement_does_not_commit_the_first(rest: str, database: str) -> None:
    failure = await SqlBench(database).fail(f"INSERT INTO days VALUES ('a', 1, ''); {rest}")  # noqa: S608
    assert (failure.type, failure.retryable) == ("sql_state_42601", False)
    assert failure.message.endswith("write one statement")
    assert rows(database, "SELECT day FROM days") == []


async def test_statement_without_parameters_is_sent_as_written(database: str) -> None:
    statement = "INSERT INTO days VALUES ('100%', 7 % 4, 'a\\:b ''; COMMIT; '' %s %(x)s -- ;'); -- end"
    assert (await SqlBench(database).execute(statement))["rows_affected"] == 1
    assert rows(database, "SELECT * FROM days") == [("100%", 3, "a:b '; COMMIT; ' %s %(x)s -- ;")]
    for statement in ("CREATE TABLE other (a int)", "SET LOCAL lock_timeout = 100", "DO $$ BEGIN NULL; END; $$;"):
        await SqlBench(database).execute(statement)


async def test_session_is_not_shared_with_other_jobs(database: str) -> None:
    await SqlBench(database).execute("SET search_path = pg_catalog")
    assert await SqlBench(database).execute("SELECT 1 FROM days") == affected(0)


async def test_statement_reaches_no_other_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    for statement in (f"ATTACH '{tmp_path}/other.db' AS other", f"VACUUM INTO '{tmp_path}/other.db'"):
        assert not (await SqlBench(url).fail(statement)).retryable
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA hard_heap_limit = 1000",
        "PRAGMA main.Soft_Heap_Limit = 1000",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA journal_mode = OFF",
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA writable_schema = ON",
        "PRAGMA trusted_schema = ON",
        "PRAGMA mmap_size = 1000000000",
        "PRAGMA temp_store = FILE",
        "PRAGMA a_pragma_of_a_later_version = 1",
    ],
)
async def test_statement_leaves_sqlite_of_other_jobs_alone(statement: str, tmp_path: Path) -> None:
    def limits() -> list[tuple[int]]:
        pragmas = ("PRAGMA hard_heap_limit", "PRAGMA soft_heap_limit")
        return [sqlite3.connect(":memory:").execute(pragma).fetchone() for pragma in pragmas]

    before = limits()
    error = await SqlBench(f"sqlite:///{tmp_path}/own.db").fail(statement)
    assert "not authorized" in error.message
    assert limits() == before


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 7", "PRAGMA foreign_key_check", "PRAGMA table_info(t)"])
async def test_harmless_pragmas_are_allowed(statement: str, tmp_path: Path) -> None:
    await SqlBench(f"sqlite:///{tmp_path}/own.db").execute(statement)


async def test_value_of_sqlite_has_a_limit(tmp_path: Path) -> None:
    bench = SqlBench(f"sqlite:///{tmp_path}/own.db")
    error = await bench.fail("SELECT length(zeroblob(134217729))")
    assert (error.type, error.retryable) == ("sqlite_toobig", False)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELEC 1", "sql_state_42601"),
        ("SELECT * FROM nowhere", "sql_state_42P01"),
        ("INSERT INTO days VALUES ('a', -1, '')", "sql_state_23514"),
        ("SELECT 1 / 0", "sql_state_22012"),
        ("SELECT 1; SELECT 2", "sql_state_42601"),
        ("COPY days TO STDOUT", "sql_failed"),
        ("COPY days FROM STDIN", "sql_failed"),
    ],
)
async def test_wrong_statement_is_not_retried(statement: str, kind: str, database: str) -> None:
    failure = await SqlBench(database).fail(statement)
    assert (failure.type, failure.retryable) == (kind, False)


async def test_wrong_statement_of_sqlite_is_not_retried(tmp_path: Path) -> None:
    failure = await SqlBench(f"sqlite:///{tmp_path}/own.db").fail("SELECT * FROM nowhere")
    assert (failure.type, failure.retryable) == ("sqlite_error", False)


async def test_values_are_in_no_error(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter22")
    parameters: dict[str, Any] = {"day": "private", "amount": -1, "more": "${env:DB_PASSWORD}"}
    failure = await SqlBench(database).fail(INSERT, parameters=parameters)
    assert failure.message == 'dwh: new row for relation "days" violates check constraint "days_amount_check"'


async def test_cut_error_shows_no_part_of_a_secret(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery-staple")
    statement = "SELECT CAST(repeat('x', 975) || :secret AS integer)"
    failure = await SqlBench(database).fail(statement, parameters={"secret": "${env:DB_PASSWORD}"})
    assert failure.message.endswith("x${env:DB_")
    assert "correct" not in failure.message


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57P01", "53300", "08006"])
async def test_passing_failure_is_retried(state: str, database: str) -> None:
    statement = f"DO $$ BEGIN RAISE EXCEPTION 'later' USING ERRCODE = '{state}'; END $$"
    failure = await SqlBench(database).fail(statement)
    assert (failure.type, failure.retryable) == (f"sql_state_{state}", True)


async def test_lost_connection_is_retried(database: str) -> None:
    held = await (bench := SqlBench(database)).give(SLEEP, timeout=600)
    running = asyncio.create_task(bench.executor.run(held))
    await until(lambda: bool(sleeping(database)))
    rows(database, "SELECT pg_terminate_backend(%(pid)s)", {"pid": sleeping(database)[0][0]})
    await running
    error = (await bench.report()).error
    assert error is not None
    assert (error.type, error.retryable) == ("sql_state_57P01", True)


async def test_server_that_is_away_is_retried() -> None:
    failure = await SqlBench("postgresql://reader:hunter22@127.0.0.1:1/none").fail("SELECT 1")
    assert (failure.type, failure.retryable) == ("sql_connection_failed", True)
    assert "hunter22" not in failure.message


async def test_busy_sqlite_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.worker.builtin.database._SQLITE_BUSY_S", 0.05)
    url = f"sqlite:///{tmp_path}/own.db"
    await SqlBench(url).execute(CREATE)
    other = sqlite3.connect(tmp_path / "own.db")
    other.execute("BEGIN IMMEDIATE")
    failure = await SqlBench(url).fail("DELETE FROM days")
    other.close()
    assert (failure.type, failure.retryable) == ("sqlite_busy", True)


def sleeping(url: str) -> list[tuple[Any, ...]]:
    """Return the sessions that run the statement; a session of this test has the text in its own."""
    return rows(url, "SELECT pid FROM pg_stat_activity WHERE query LIKE 'INSERT%%pg_sleep(600)%%' AND state = 'active'")


@pytest.mark.parametrize("reason", list(StopReason))
async def test_stopped_task_cancels_its_statement(reason: StopReason, database: str) -> None:
    held = await (bench := SqlBench(database)).give(SLEEP, timeout=600)
    running = asyncio.create_task(bench.executor.run(held))
    await until(lambda: bool(sleeping(database)))
    held.stop(reason)
    await running
    await until(lambda: not sleeping(database))
    assert rows(database, "SELECT * FROM days") == []


async def test_reading_of_rows_ends_with_the_timeout(database: str) -> None:
    failure = await SqlBench(database).fail("SELECT generate_series(1, 1000000000)", timeout=1)
    assert failure.type == "timed_out"
    await until(lambda: not rows(database, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tocsin'"))


async def test_constraint_at_the_commit_is_a_failure(database: str) -> None:
    rows(database, "CREATE TABLE one (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    failure = await SqlBench(database).fail("INSERT INTO one VALUES (1), (1)")
    assert (failure.type, failure.retryable) == ("sql_state_23505", False)


async def test_statement_ends_with_the_timeout(database: str) -> None:
    failure = await SqlBench(database).fail(SLEEP, timeout=1)
    assert (failure.type, failure.retryable) == ("timed_out", True)
    await until(lambda: not sleeping(database))


async def test_timeout_is_that_of_the_server_too(database: str) -> None:
    read = await SqlBench(database).execute(
        "SELECT current_setting('statement_timeout') AS limit_", timeout=30, max_rows=1
    )
    assert 0 < int(read["rows"][0]["limit_"].removesuffix("ms").removesuffix("s")) <= 30_000


async def test_endless_statement_of_sqlite_is_interrupted(tmp_path: Path) -> None:
    failure = await SqlBench(f"sqlite:///{tmp_path}/own.db").fail(SQLITE_ENDLESS, timeout=0.5)
    assert failure.type == "timed_out"


async def test_procedure_gets_bound_arguments(database: str) -> None:
    rows(
        database,
        "CREATE PROCEDURE keep(d date, n numeric, flag bool, more text, INOUT kept int DEFAULT 0) LANGUAGE sql AS "
        "$$ INSERT INTO days VALUES (d::text || flag, n, more); SELECT 7 $$",
    )
    hostile = "'); DROP TABLE days; --"
    arguments: list[JsonValue] = ["{{ input.day }}", "{{ input.n }}", True, hostile, None]
    result = await SqlBench(database).call("public.keep", arguments, input={"day": "2026-01-02", "n": 1.5})
    assert result == affected(1, rows=[{"kept": 7}])
    assert rows(database, "SELECT day, amount::text, more FROM days") == [("2026-01-02true", "1.5", hostile)]


async def test_procedure_needs_permission(database: str) -> None:
    for name in ("other.refresh", "pg_catalog.x"):
        failure = await SqlBench(database).fail_call(name, [])
        assert failure.type == "sql_not_allowed"
        assert "builtin.sql.connections.dwh.procedures" in failure.message


@pytest.mark.parametrize(
    ("procedures", "schema"),
    [
        (["other.*", "public.*"], "other"),
        (["public.keep", "other.*"], "public"),
        (["public.refresh", "other.keep"], "other"),
        (["other.*", "keep"], "public"),
    ],
)
async def test_name_without_a_schema_means_an_allowed_procedure(
    database: str, procedures: list[str], schema: str
) -> None:
    rows(database, "CREATE SCHEMA other")
    for place in ("public", "other"):
        rows(
            database,
            f"CREATE PROCEDURE {place}.keep() LANGUAGE sql AS $$ INSERT INTO public.days VALUES ('{place}', 1) $$",  # noqa: S608
        )
    bench = SqlBench(database)
    bench.offer(procedures=procedures)
    await bench.call("keep", [])
    assert rows(database, "SELECT day FROM days") == [(schema,)]


@pytest.mark.parametrize("procedures", [["public.refresh"], ["refresh", "other.refresh"]])
async def test_name_without_a_schema_needs_permission(database: str, procedures: list[str]) -> None:
    bench = SqlBench(database)
    bench.offer(procedures=procedures)
    assert (await bench.fail_call("keep", [])).type == "sql_not_allowed"


async def test_unknown_procedure_is_not_retried(database: str) -> None:
    failure = await SqlBench(database).fail_call("refresh", [1])
    assert (failure.type, failure.retryable) == ("sql_state_42883", False)


async def test_sqlite_has_no_procedures(tmp_path: Path) -> None:
    failure = await SqlBench(f"sqlite:///{tmp_path}/own.db").fail_call("refresh", [])
    assert (failure.type, failure.retryable) == ("wrong_input", False)


async def test_connection_is_one_of_the_settings(tmp_path: Path) -> None:
    failure = await SqlBench(f"sqlite:///{tmp_path}/own.db").fail("SELECT 1", connection="other")
    assert failure.type == "sql_not_allowed"
    assert "`dwh`" in failure.message


def test_rules_need_a_connection_and_procedures() -> None:
    for function in (SqlFunction, ProcedureFunction):
        with pytest.raises(SettingsError) as raised:
            function(SqlRules())
        assert [(p.field, p.code) for p in raised.value.problems] == [("builtin.sql.connections", "required")]
    with pytest.raises(SettingsError):
        ProcedureFunction(SqlRules(connections={"dwh": SqlConnection(url="postgresql://x/y")}))


@pytest.mark.parametrize(
    "connection",
    [{"url": "mysql://x/y"}, {"url": "sqlite://"}, {"url": "x"}, {"url": "postgresql://x", "procedures": ["*"]}],
)
def test_wrong_connection_is_refused(connection: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SqlConnection.model_validate(connection)
