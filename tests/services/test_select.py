"""SELECT over the tables `sys.…`: what it may read, and its limits."""

import os
import re
import resource
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tocsin.domain.statement_error import Place, StatementError
from tocsin.services.calculations import ServerBusy
from tocsin.services.select import MAX_ROWS, MAX_STATEMENT_CHARACTERS, TABLES, CellRow, Selected, SysDatabase

JOBS: Sequence[CellRow] = [tuple(f"{column} {number}" for column in TABLES["jobs"]) for number in range(2_000)]


def select(text: str, tables: Mapping[str, Iterable[CellRow]] | None = None) -> Selected:
    rows: Mapping[str, Iterable[CellRow]] = {"jobs": JOBS} if tables is None else tables
    with closing(SysDatabase(text, Place(1, 1))) as database:
        return database.select({name: rows[name] for name in database.check() & rows.keys()})


@pytest.mark.parametrize(
    ("text", "tables", "first"),
    [
        ("SELECT count(*) FROM sys.jobs", {"jobs"}, (2_000,)),
        ("SELECT job_name FROM sys.jobs ORDER BY next_run_time ASC LIMIT 1", {"jobs"}, ("job_name 0",)),
        (
            "SELECT a.job_name FROM sys.jobs a JOIN sys.jobs b USING (job_uuid) WHERE 1 LIMIT 1",
            {"jobs"},
            ("job_name 0",),
        ),
        ("SELECT x FROM (SELECT lower(job_name) x FROM sys.jobs) WHERE x LIKE '%7' LIMIT 1", {"jobs"}, ("job_name 7",)),
        (
            "SELECT group_concat(job_name, '; ') FROM (SELECT job_name FROM sys.jobs LIMIT 2)",
            {"jobs"},
            ("job_name 0; job_name 1",),
        ),
        ("SELECT group_concat(DISTINCT length('a')) FROM sys.jobs", {"jobs"}, ("1",)),
        ("SELECT 1 -- nothing", set(), (1,)),
        ("SELECT count(*) FROM jobs", {"jobs"}, (2_000,)),
        ("SELECT count(*) FROM (SELECT 1)", set(), (1,)),
        ("SELECT count(*) FROM (SELECT 1 FROM sys.jobs)", {"jobs"}, (2_000,)),
        ("SELECT 1.5, 1e999, NULL, x'00'", set(), (1.5, None, None, None)),
        (
            "SELECT r.state FROM sys.job_runs r, sys.agents, sys.job_dependencies, sys.shards",
            {*TABLES} - {"jobs"},
            None,
        ),
    ],
)
def test_a_statement_reads_tables(text: str, tables: set[str], first: CellRow | None) -> None:
    with closing(SysDatabase(text, Place(1, 1))) as database:
        assert database.check() == tables
    rows = select(text).rows
    assert (rows[0] if rows else None) == first


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM sqlite_master",
        "SELECT * FROM sys.sqlite_master",
        "SELECT * FROM sqlite_temp_master",
        "SELECT count(*) FROM sqlite_master",
        "SELECT 1 FROM main.sqlite_master",
        "SELECT count(*) FROM pragma_database_list",
        "SELECT count(*) FROM generate_series(1, 1000000000)",
        "SELECT count(*) FROM json_each('[1]')",
        "SELECT * FROM pragma_table_info('jobs')",
        "SELECT * FROM sqlite_dbpage",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT randomblob(1000000000)",
        "SELECT replace(hex(zeroblob(10000)), '0', 'xxxxxxxxxxx')",
        "SELECT printf('%.*c', 100000000, 'x')",
        "SELECT group_concat(a.job_name) FROM sys.jobs a, sys.jobs b",
        "SELECT sum(length(group_concat(job_name) OVER (ORDER BY job_uuid))) FROM sys.jobs a",
        "SELECT * FROM (WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x FROM t)",
        "SELECT 1; DELETE FROM sys.jobs",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM sys.jobs",
        "SELECT * FROM sys.secrets",
        "SELECT ?",
        "SELECT (",
        "SELECT " + "(" * 200 + "1" + ")" * 200,
        "SELECT " + "1+" * 200 + "1",
        "SELECT '" + "x" * MAX_STATEMENT_CHARACTERS + "'",
        "SELECT 1" + " UNION SELECT 1" * 20,
        "DELETE FROM sys.jobs",
        "PRAGMA database_list",
        "ATTACH '/tmp/x' AS y",
        "INSERT INTO sys.jobs SELECT * FROM sys.jobs",
        "CREATE TEMP TABLE t AS SELECT 1",
        "SELECT count(*) FROM sys.jobs a, sys.jobs b, sys.jobs c",
        "SELECT a.job_name || b.job_name x FROM sys.jobs a, sys.jobs b ORDER BY x",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(StatementError) as caught:
        select(text)
    assert caught.value.place == (1, 1)


def _copied(times: int, depth: int) -> str:
    """Return a short statement whose expressions name each other, and grow with each level when SQLite reads it."""
    table = "(SELECT job_name AS a FROM sys.jobs)"
    for _ in range(depth):
        table = f"(SELECT 1 IN ({','.join('a' * times)}) AS a FROM {table})"  # noqa: S608 - the statement is the test
    return f"SELECT a FROM {table}"  # noqa: S608


@pytest.mark.parametrize(
    "text",
    [
        _copied(2_400, 3),
        _copied(1_700, 4),
        f"SELECT (1 IN ({','.join('1' * 3_900)})) AS a FROM sys.jobs WHERE 1 IN ({','.join('a' * 3_900)})",  # noqa: S608
    ],
)
def test_memory_of_a_statement_is_limited(text: str) -> None:
    """SQLite needs this memory while it reads the statement."""
    assert len(text) < MAX_STATEMENT_CHARACTERS
    with pytest.raises(StatementError, match="too much memory") as caught:
        select(text)
    assert caught.value.place == (1, 1)
    assert select("SELECT count(*) FROM sys.jobs").rows == ((2_000,),)


def test_statement_uses_no_memory_of_its_caller() -> None:
    """The limits of a statement concern no other database of the process, such as the history."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StatementError, match="too much memory"):
        select(_copied(2_400, 3))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 65_536
    assert sqlite3.connect(":memory:").execute("PRAGMA hard_heap_limit").fetchone() == (0,)


def test_lost_process_is_answered_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    database = SysDatabase("SELECT count(*) FROM sys.jobs", Place(1, 1))
    database.check()
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text()
    os.kill(int(children.split()[-1]), signal.SIGKILL)  # as a system without memory does
    with pytest.raises(ServerBusy, match="ended before its answer"):
        database.select({"jobs": JOBS})
    database.close()
    monkeypatch.setattr(sys, "executable", "/nothing")
    with pytest.raises(ServerBusy, match="no process"):
        select("SELECT 1")


def test_sorting_large_rows_is_limited() -> None:
    """Each row takes few instructions, and kilobytes of a temporary file."""
    wide: Sequence[CellRow] = [(f"{number}", *("x" * 4_000 for _ in TABLES["jobs"][1:])) for number in range(3_000)]
    text = "SELECT a.description d, b.job_name, a.timezone, b.state, b.created_by FROM sys.jobs a, sys.jobs b ORDER BY d, 2"
    with pytest.raises(StatementError, match="too much work"):
        select(text, {"jobs": wide})


def test_documentation_has_every_column() -> None:
    """The page for users has the tables with their columns, in order."""
    page = (Path(__file__).parents[2] / "docs/how-to/sql.md").read_text("utf-8")
    rows = re.findall(r"^\| `sys\.(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", columns)) for name, columns in rows} == dict(TABLES)


def test_an_answer_is_limited() -> None:
    answer = select("SELECT * FROM sys.jobs")
    assert (len(answer.rows), answer.is_truncated, answer.columns) == (MAX_ROWS, True, TABLES["jobs"])
    wide: Sequence[CellRow] = [tuple("x" * 4_000 for _ in TABLES["jobs"])] * 100
    answer = select("SELECT * FROM sys.jobs", {"jobs": wide})
    assert 0 < len(answer.rows) < 100
    assert answer.is_truncated
