"""SELECT over the tables `sys.…`: a database in memory for one statement.

SQLite runs the statement over rows that were copied for it, so that no statement reaches the history, the files or the
rows that the caller may not see. An authorizer allows reading of these tables and a list of functions, and nothing else.
The size of the statement, of each value and of the answer is limited, and so are the work and the memory.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from ..domain.statement_error import Place, StatementError
from .sys_tables import TABLES, Cell, CellRow

MAX_ROWS: Final = 1_000
"""The rows of an answer."""
MAX_ANSWER_CHARACTERS: Final = 2_097_152
MAX_STATEMENT_CHARACTERS: Final = 16_384
MAX_INSTRUCTIONS: Final = 10_000_000
"""The instructions of SQLite's machine for one statement."""
MAX_CPU_S: Final = 1.0
"""The CPU time of one statement, because few instructions may sort many large rows in temporary files."""
MAX_MEMORY_BYTES: Final = 268_435_456
"""The memory of SQLite in this process, also for other databases.

While SQLite reads a statement, it copies the expression of a column to each place that names the column. So a short statement may need
gigabytes, before the first instruction is counted.
"""
_STEP: Final = 100
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
        *("count", "sum", "total", "avg", "min", "max", "abs", "round", "coalesce", "ifnull", "nullif", "iif"),
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
    """A database for one statement. Threads use it one after the other."""

    def __init__(self, statement: str, place: Place) -> None:
        """Check a statement over the empty tables.

        Raises:
            StatementError: SQLite cannot read it, or it does more than to read the tables.
        """
        self._statement = statement
        self._place = place
        self._read: set[str] = set()
        self._budget = MAX_INSTRUCTIONS // _STEP
        self._deadline = 0.0
        self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._database.execute(f"PRAGMA hard_heap_limit={MAX_MEMORY_BYTES}")
        self._database.execute("ATTACH ':memory:' AS sys")
        for table, columns in TABLES.items():
            self._database.execute(f"CREATE TABLE sys.{table} ({', '.join(columns)})")
        for limit, most in _LIMITS.items():
            self._database.setlimit(limit, most)
        try:
            if len(statement) > MAX_STATEMENT_CHARACTERS:
                raise self._refused(f"it has {len(statement):,} characters, more than {MAX_STATEMENT_CHARACTERS:,}")
            self._run(f"EXPLAIN {statement}")
        except StatementError:
            self.close()
            raise
        except MemoryError:
            self.close()
            raise self._too_large() from None

    @property
    def tables(self) -> frozenset[str]:
        """The tables that the statement reads."""
        return frozenset(self._read)

    def select(self, tables: Mapping[str, Iterable[CellRow]]) -> Selected:
        """Return the answer over the rows of some tables, and close the database.

        Raises:
            StatementError: the statement fails, or needs too much work.
        """
        try:
            for table, rows in tables.items():
                marks = ", ".join("?" for _ in TABLES[table])
                self._database.executemany(f"INSERT INTO sys.{table} VALUES ({marks})", rows)  # noqa: S608 - our own names
            self._deadline = time.thread_time() + MAX_CPU_S
            self._database.set_progress_handler(self._count, _STEP)
            return self._run(self._statement)
        except MemoryError:
            raise self._too_large() from None
        finally:
            self.close()

    def close(self) -> None:
        """Free the memory."""
        self._database.close()

    def _run(self, text: str) -> Selected:
        self._database.set_authorizer(self._authorize)
        try:
            cursor = self._database.execute(text)
            columns = tuple(column[0] for column in cursor.description or ())
            rows, characters = list[CellRow](), 0
            for row in cursor:
                characters += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
                if len(rows) == MAX_ROWS or characters > MAX_ANSWER_CHARACTERS:
                    return Selected(columns, tuple(rows), is_truncated=True)
                rows.append(tuple(_plain(cell) for cell in row))
            return Selected(columns, tuple(rows), is_truncated=False)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._explained(error) from None
        finally:
            self._database.set_authorizer(None)

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, _trigger: str | None
    ) -> int:
        is_allowed = action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
        if action == sqlite3.SQLITE_READ and first is None:  # a subquery of which no column is read
            is_allowed = True
        elif action == sqlite3.SQLITE_READ and first in TABLES and database in {"sys", None}:  # None: no column is read
            self._read.add(str(first))
            is_allowed = True
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    def _count(self) -> int:
        self._budget -= 1
        return int(self._budget < 0 or time.thread_time() > self._deadline)

    def _explained(self, error: Exception) -> StatementError:
        text = str(error)
        tables = ", ".join(f"sys.{table}" for table in TABLES)
        if "interrupted" in text:
            return self._refused("it needs too much work: join fewer rows, or read the history's database itself")
        if "no such table" in text or "not authorized" in text or "prohibited" in text:
            return self._refused(f"{text}: a SELECT reads {tables}, and calls simple functions")
        if "no such column" in text:
            columns = "; ".join(f"sys.{table}: {', '.join(TABLES[table])}" for table in sorted(self._read or TABLES))
            return self._refused(f"{text}: the columns are {columns}")
        return self._refused(text)

    def _too_large(self) -> StatementError:
        return self._refused(
            "it needs too much memory: name each column fewer times, or read the history's database itself"
        )

    def _refused(self, reason: str) -> StatementError:
        return StatementError(f"SELECT: {reason}", self._place)


def _plain(cell: object) -> Cell:
    match cell:
        case str() | int() | None:
            return cell
        case float():
            return cell if isfinite(cell) else None
        case _:
            return None
