"""The process of one SELECT: a database in memory, with limits of its own.

`services.select` runs this file by its path, with the standard library alone. It reads lines of JSON and answers with lines of JSON:

    {"tables": {...}, "limits": {...}, "functions": [...], "statement": ...}   the tables that the statement reads
    {"table": ..., "rows": [...]}                                              nothing
    {"select": true}                                                           the rows of the answer

An answer with `failed` has SQLite's message, and with `memory` the statement needs too much.
"""

import contextlib
import json
import math
import os
import resource
import sqlite3
import sys
import time
from typing import Any, Final

PROCESS_BYTES: Final = 536_870_912
"""The address space of the process."""
CPU_S: Final = 10
"""The CPU time of the process, beyond that of its statement."""
STEP: Final = 100
"""Instructions of SQLite's machine between two looks at the limits."""


class Database:
    """The tables of a statement."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self.read: set[str] = set()
        self._cpu_s = math.inf
        self._budget = task["max_instructions"] // STEP
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.execute(f"PRAGMA hard_heap_limit={task['max_memory_bytes']}")
        self._database.execute("ATTACH ':memory:' AS sys")
        for table, columns in task["tables"].items():
            self._database.execute(f"CREATE TABLE sys.{table} ({', '.join(columns)})")
        for limit, most in task["limits"]:
            self._database.setlimit(limit, most)

    def insert(self, table: str, rows: list[list[Any]]) -> None:
        marks = ", ".join("?" for _ in self._task["tables"][table])
        self._database.executemany(f"INSERT INTO sys.{table} VALUES ({marks})", rows)  # noqa: S608 - our own names

    def check(self) -> dict[str, Any]:
        self._run(f"EXPLAIN {self._task['statement']}")
        return {"read": sorted(self.read)}

    def select(self) -> dict[str, Any]:
        self._cpu_s = time.process_time() + self._task["max_cpu_s"]
        self._database.set_progress_handler(self._count, STEP)
        return self._run(self._task["statement"])

    def _run(self, text: str) -> dict[str, Any]:
        self._database.set_authorizer(self._authorize)
        cursor = self._database.execute(text)
        columns = [column[0] for column in cursor.description or ()]
        rows, characters, is_truncated = list[Any](), 0, False
        for row in cursor:
            characters += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            if len(rows) == self._task["max_rows"] or characters > self._task["max_answer_characters"]:
                is_truncated = True
                break
            rows.append([_plain(cell) for cell in row])
        cursor.close()
        self._database.set_authorizer(None)
        return {"columns": columns, "rows": rows, "is_truncated": is_truncated}

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, _trigger: str | None
    ) -> int:
        is_allowed = action == sqlite3.SQLITE_SELECT
        if action == sqlite3.SQLITE_FUNCTION:
            is_allowed = second in self._task["functions"]
        elif action == sqlite3.SQLITE_READ and first is None:  # a subquery of which no column is read
            is_allowed = True
        elif action == sqlite3.SQLITE_READ and first in self._task["tables"] and database in {"sys", None}:
            self.read.add(str(first))  # without a database: no column is read
            is_allowed = True
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    def _count(self) -> int:
        self._budget -= 1
        return int(self._budget < 0 or time.process_time() > self._cpu_s)


def _plain(cell: object) -> object:
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    return cell if isinstance(cell, str | int) else None


def _answer(line: str, database: list[Database]) -> dict[str, Any] | None:
    message = json.loads(line)
    if "statement" in message:
        database.append(Database(message))
        return database[0].check()
    if "table" in message:
        database[0].insert(message["table"], message["rows"])
        return None
    return database[0].select()


def main() -> None:
    """Answer the messages of standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with contextlib.suppress(ValueError, OSError):  # not every system limits it
        resource.setrlimit(resource.RLIMIT_AS, (PROCESS_BYTES, PROCESS_BYTES))
    os.nice(5)
    database: list[Database] = []
    for line in sys.stdin:
        try:
            answer = _answer(line, database)
        except MemoryError:
            answer = {"memory": True}
        except (sqlite3.Error, sqlite3.Warning) as error:
            answer = {"failed": str(error), "read": sorted(database[0].read)}
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            if "read" not in answer or "failed" in answer:
                return


if __name__ == "__main__":
    main()
