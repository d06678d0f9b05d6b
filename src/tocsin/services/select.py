"""SELECT over the tables `sys.…` of scratchbird (§9).

A process has a database in memory for one statement. SQLite runs the statement over rows that were copied for it
(`select_process`), so that no statement reaches the history, the files or the rows that the caller may not see. An authorizer
allows reading of these tables and a list of functions, and nothing else.
The size of the statement, of each value and of the answer is limited, and so are the work and the memory.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from threading import Timer
from typing import Any, Final, TypeAlias

from pydantic_core import from_json, to_json

from ..domain.agent import AgentRecord
from ..domain.history import rows_affected
from ..domain.ledger import schedule_type
from ..domain.statement_error import Place, StatementError
from ..ports import ExecutionRow
from . import select_process
from .calculations import ServerBusy
from .jobs import Job
from .shards import ShardMap

Cell: TypeAlias = str | int | float | None
CellRow: TypeAlias = tuple[Cell, ...]

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": (
        *("job_uuid", "job_name", "description", "job_class", "job_type", "schedule_type", "cron_expression"),
        *("timezone", "next_run_time", "last_scheduled_time", "state", "created_by", "created_at"),
    ),
    "job_runs": (
        *("job_run_uuid", "job_uuid", "job_name", "assigned_node", "scheduled_time", "started_at", "completed_at"),
        *("state", "retry_count", "result_message", "rows_affected", "result_data", "error_code", "assigned_node_uuid"),
        "shard",
    ),
    "job_dependencies": ("job_uuid", "depends_on_job_uuid", "job_name", "depends_on_job_name"),
    "shards": ("shard_id", "shard_name", "state", "labels", "map_version", "owner_name", "owner_uuid"),
    "agents": (
        *("agent_uuid", "agent_name", "kind", "state", "queues", "functions", "max_concurrent_jobs", "running"),
        *("host", "version", "state_changed_at"),
    ),
}
"""The columns of each table."""
MAX_RESULT_CHARACTERS: Final = 2_048
"""A longer result of a run is NULL in `result_data`, and a longer text of a run is cut."""


def job_rows(jobs: Iterable[Job], now: datetime) -> Iterator[CellRow]:
    """Yield the rows of `sys.jobs` at `now` (UTC)."""
    for job in jobs:
        definition = job.definition
        yield (
            job.job_uuid,
            job.name,
            definition.description,
            definition.job_class,
            "SQL" if definition.sql is not None else "PROCEDURE" if definition.procedure is not None else "EXTERNAL",
            schedule_type(job.ledger.timetable),
            definition.schedule,
            definition.timezone,
            _time(job.next_fire_time(now)),
            _time(job.last_fire_time),
            state_of(job),
            job.created_by,
            _time(job.created_at),
        )


def state_of(job: Job) -> str:
    """Return the state of a job in the words of scratchbird (§3.1)."""
    return {"paused": "PAUSED", "disabled": "DISABLED"}.get(job.status, "ENABLED")


def run_rows(runs: Iterable[ExecutionRow], jobs: Mapping[str, Job]) -> Iterator[CellRow]:
    """Yield the rows of `sys.job_runs`; `jobs` are the registered jobs.

    A run that ended before the job was registered is of an earlier registration of the name, and has no job's UUID.
    """
    for run in runs:
        job = jobs.get(run.job_name)
        message = run.result.get("message") if isinstance(run.result, dict) else None
        rows = rows_affected(run.result)
        text = run.error or run.reason or (message if isinstance(message, str) else None)
        yield (
            run.execution_id,
            None if job is None or (run.completed_at and run.completed_at < job.created_at) else job.job_uuid,
            run.job_name,
            run.worker,
            _time(run.scheduled_time),
            _time(run.started_at),
            _time(run.completed_at),
            run.status.upper(),
            max(0, run.attempt - 1),
            text[:MAX_RESULT_CHARACTERS] if text else None,
            rows if rows is not None and -(2**63) <= rows < 2**63 else None,
            _data(run.result),
            run.error_type,
            run.agent,
            run.shard,
        )


def dependency_rows(jobs: Mapping[str, Job]) -> Iterator[CellRow]:
    """Yield the rows of `sys.job_dependencies`. A job that is not visible has no UUID here."""
    for job in jobs.values():
        for dependency in job.definition.depends_on:
            other = jobs.get(dependency.job)
            yield (job.job_uuid, other.job_uuid if other is not None else None, job.name, dependency.job)


def agent_rows(agents: Iterable[AgentRecord]) -> Iterator[CellRow]:
    """Yield the rows of `sys.agents`."""
    for agent in agents:
        yield (
            agent.agent_id,
            agent.name,
            agent.kind,
            agent.state.value,
            _listed(agent.queues),
            _listed(agent.functions),
            agent.max_concurrent_jobs,
            len(agent.held),
            agent.host,
            agent.version,
            _time(agent.since),
        )


def shard_rows(newest: ShardMap) -> Iterator[CellRow]:
    """Yield the rows of `sys.shards`."""
    for shard in newest.shards:
        labels = json.dumps(shard.labels, ensure_ascii=False) if shard.labels else None
        owner = newest.owners.get(shard.shard_id)
        named = (None, None) if owner is None else (owner.name, owner.agent_id)
        yield (shard.shard_id, shard.name or None, shard.state.value, labels, newest.version, *named)


def _time(at: datetime | None) -> str | None:
    """Return an instant as text that sorts by time and that SQLite's functions read."""
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts)[:MAX_RESULT_CHARACTERS]


def _data(result: object) -> str | None:
    if result is None:
        return None
    text = json.dumps(result, ensure_ascii=False)
    return text if len(text) <= MAX_RESULT_CHARACTERS else None


MAX_ROWS: Final = 1_000
MAX_ANSWER_CHARACTERS: Final = 2_097_152
MAX_STATEMENT_CHARACTERS: Final = 16_384
MAX_INSTRUCTIONS: Final = 10_000_000
"""The instructions of SQLite's machine for one statement."""
MAX_CPU_S: Final = 1.0
"""The CPU time of one statement, because few instructions may sort many large rows in temporary files."""
MAX_MEMORY_BYTES: Final = 268_435_456
"""The memory of SQLite for one statement.

While SQLite reads a statement, it copies the expression of a column to each place that names the column. So a short statement may need
gigabytes, before the first instruction is counted.
"""
MAX_S: Final = 20.0
"""Seconds from the check of a statement to its answer, also while its rows are read. Then its process is ended."""
ROWS_AT_ONCE: Final = 200
_BOUNDS: Final = {
    "max_rows": MAX_ROWS,
    "max_answer_characters": MAX_ANSWER_CHARACTERS,
    "max_instructions": MAX_INSTRUCTIONS,
    "max_cpu_s": MAX_CPU_S,
    "max_memory_bytes": MAX_MEMORY_BYTES,
}
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 65_536,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_STATEMENT_CHARACTERS,
    sqlite3.SQLITE_LIMIT_COLUMN: 64,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 5,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 32,
}
_FUNCTIONS: Final = frozenset(
    {
        *("count", "sum", "total", "avg", "min", "max", "group_concat"),
        *("abs", "round", "coalesce", "ifnull", "nullif", "iif"),
        *(
            "length",
            "lower",
            "upper",
            "trim",
            "ltrim",
            "rtrim",
            "substr",
            "substring",
            "instr",
            "like",
            "glob",
            "typeof",
        ),
        *("date", "time", "datetime", "julianday", "unixepoch", "strftime", "row_number", "rank", "dense_rank"),
    }
)


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows of an answer."""

    columns: tuple[str, ...]
    rows: tuple[CellRow, ...]
    is_truncated: bool


class SysDatabase:
    """A process with a database for one statement. Threads use it one after the other.

    So neither the memory nor the limits of a statement concern the databases of this process. A statement that is too long, fails,
    needs too much work, or does more than to read the tables raises `StatementError`. `ServerBusy`: no process can be started, or
    it was ended, because it took too long or the machine has no memory.
    """

    def __init__(self, statement: str, place: Place) -> None:
        """Start the process of a statement."""
        self._statement = statement
        self._place = place
        self._read = frozenset[str]()
        if len(statement) > MAX_STATEMENT_CHARACTERS:
            raise self._refused(f"it has {len(statement):,} characters, more than {MAX_STATEMENT_CHARACTERS:,}")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, "-I", "-S", select_process.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise ServerBusy(f"no process can be started for a SELECT: {error.strerror}. Retry later") from None
        self._timer = Timer(MAX_S, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def check(self) -> frozenset[str]:
        """Check the statement over the empty tables; return the tables that it reads."""
        self._send(
            statement=self._statement, tables=TABLES, functions=[*_FUNCTIONS], limits=[*_LIMITS.items()], **_BOUNDS
        )
        self._read = frozenset(self._answer()["read"])
        return self._read

    def select(self, tables: Mapping[str, Iterable[CellRow]]) -> Selected:
        """Return the answer over the rows of some tables."""
        for table, rows in tables.items():
            remaining = iter(rows)
            while portion := [*islice(remaining, ROWS_AT_ONCE)]:
                self._send(table=table, rows=portion)
        self._send(select=True)
        answer = self._answer()
        return Selected(tuple(answer["columns"]), tuple(map(tuple, answer["rows"])), answer["is_truncated"])

    def close(self) -> None:
        """End the process, also while a thread waits for it: the thread then raises `ServerBusy`."""
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError, ValueError):  # a thread uses it
                if pipe is not None:
                    pipe.close()

    def _send(self, **message: object) -> None:
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        with suppress(BrokenPipeError, ValueError):  # the answer says why
            self._process.stdin.write(to_json(message) + b"\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        line = b""
        with suppress(ValueError):  # closed meanwhile
            line = self._process.stdout.readline()
        if not line:
            raise ServerBusy("the process of a SELECT ended before its answer. Retry later, or select less")
        answer: dict[str, Any] = from_json(line)
        if "memory" in answer:
            reason = "it needs too much memory: name each column fewer times, or read the history's database itself"
            raise self._refused(reason)
        if "failed" in answer:
            self._read = frozenset(answer["read"])
            raise self._explained(answer["failed"])
        return answer

    def _explained(self, text: str) -> StatementError:
        tables = ", ".join(f"sys.{table}" for table in TABLES)
        if "interrupted" in text:
            return self._refused("it needs too much work: join fewer rows, or read the history's database itself")
        if "no such table" in text or "not authorized" in text or "prohibited" in text:
            return self._refused(f"{text}: a SELECT reads {tables}, and calls simple functions")
        if "too big" in text:
            return self._refused(f"a value has more than {_LIMITS[sqlite3.SQLITE_LIMIT_LENGTH]:,} bytes: select less")
        if "no such column" in text:
            columns = "; ".join(f"sys.{table}: {', '.join(TABLES[table])}" for table in sorted(self._read or TABLES))
            return self._refused(f"{text}: the columns are {columns}")
        return self._refused(text)

    def _refused(self, reason: str) -> StatementError:
        return StatementError(f"SELECT: {reason}", self._place)
