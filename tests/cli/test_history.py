"""`tocsin history rebuild`: the same rows again, from the log alone."""

from tests.cli.conftest import World
from tests.domain.given import ID, admitted, started
from tocsin.domain.definition import JobDefinition
from tocsin.ports import ExecutionRow, JobRow
from tocsin.ports.queries import ExecutionQuery


def rows(world: World) -> tuple[list[ExecutionRow], list[JobRow]]:
    async def read() -> tuple[list[ExecutionRow], list[JobRow]]:
        async with world.history() as history:
            return list((await history.executions(ExecutionQuery(limit=100))).rows), list(await history.jobs())

    return world.do(read())


def test_rebuild_records_the_log_again(world: World) -> None:
    world.append(admitted(), started())
    world.do(world.registry.define(JobDefinition(name="nightly", schedule="0 3 * * *", function="f")))
    result = world.call("history", "rebuild", "--yes")
    assert (result.code, result.out.strip()) == (0, "1 execution recorded")
    before = rows(world)
    assert ([row.execution_id for row in before[0]], [job.job_name for job in before[1]]) == ([ID], ["nightly"])

    assert world.call("history", "rebuild", "--yes", "-o", "json").json == {"executions": 1}
    assert rows(world) == before


def test_rebuild_without_a_terminal_requires_yes(world: World) -> None:
    result = world.call("history", "rebuild", "-o", "json")
    assert (result.code, result.error["error_code"]) == (2, "confirmation-required")
