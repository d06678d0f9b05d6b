"""Statements for the tests, in real databases."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from pydantic import JsonValue

from tests.worker.given import Bench
from tocsin.domain.definition.sql_work import ProcedureCall, SqlStatement
from tocsin.domain.events import Failure
from tocsin.settings.builtin import SqlRules
from tocsin.worker.builtin.sql import ProcedureFunction, SqlFunction
from tocsin.worker.held_tasks import HeldTask


class SqlBench(Bench):
    """A bench whose worker runs statements and procedures in a database."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.offer(procedures=["public.*", "refresh"])

    def offer(self, **connection: Any) -> None:  # noqa: ANN401 - as in the settings
        """Offer both functions under these rules."""
        rules = SqlRules.model_validate({"connections": {"dwh": {"url": self.url} | connection}})
        self.handlers.add_builtin("tocsin.sql", SqlFunction(rules))
        self.handlers.add_builtin("tocsin.procedure", ProcedureFunction(rules))

    async def give(self, statement: str, **more: Any) -> HeldTask:  # noqa: ANN401 - as `SqlStatement`, and `given_tasks`
        """Dispatch and claim a task with a statement."""
        task = {name: more.pop(name) for name in ("input", "timeout", "job_uuid") if name in more}
        fields = {"connection": "dwh", "statement": statement, **more}
        builtin = SqlStatement(**fields).model_dump(mode="json", exclude_defaults=True)
        await self.given_task(function="tocsin.sql", builtin=builtin, **task)
        return HeldTask(await self.assigned())

    async def execute(self, statement: str, **more: Any) -> Any:  # noqa: ANN401
        """Run a statement, and return its result."""
        return await self._ended(await self.give(statement, **more))

    async def fail(self, statement: str, **more: Any) -> Failure:  # noqa: ANN401
        """Run a statement, and return its failure."""
        return await self._failed(await self.give(statement, **more))

    async def call(self, name: str, arguments: list[JsonValue], **task: Any) -> Any:  # noqa: ANN401
        """Call a procedure, and return its result."""
        return await self._ended(await self._given_call(name, arguments, **task))

    async def fail_call(self, name: str, arguments: list[JsonValue], **task: Any) -> Failure:  # noqa: ANN401
        """Call a procedure, and return its failure."""
        return await self._failed(await self._given_call(name, arguments, **task))

    async def _given_call(self, name: str, arguments: list[JsonValue], **task: Any) -> HeldTask:  # noqa: ANN401
        call = ProcedureCall(connection="dwh", name=name, arguments=tuple(arguments))
        builtin = call.model_dump(mode="json", exclude_defaults=True)
        await self.given_task(function="tocsin.procedure", builtin=builtin, **task)
        return HeldTask(await self.assigned())

    async def _ended(self, held: HeldTask) -> JsonValue:
        await self.executor.run(held)
        report = await self.report()
        assert report.error is None, report.error
        return report.result

    async def _failed(self, held: HeldTask) -> Failure:
        await self.executor.run(held)
        error = (await self.report()).error
        assert error is not None
        return error

    def again(self) -> "SqlBench":  # type: ignore[override]
        """Return a bench for another execution in the same database."""
        return SqlBench(self.url)


def rows(url: str, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Run a statement of the test in PostgreSQL."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


async def until(happened: Callable[[], bool]) -> None:
    """Wait for another session of the database."""
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(happened):  # noqa: ASYNC110 - a database cannot wake an event
            await asyncio.sleep(0.05)
