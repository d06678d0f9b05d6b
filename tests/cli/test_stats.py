"""`tocsin stats`."""

from tests.cli.conftest import World
from tests.domain.given import admitted, started
from tocsin.subjects import Stream


def record(world: World) -> None:
    async def _record() -> None:
        facts = await world.log.read("execution.>")
        async with world.history() as history:
            await history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)

    world.do(_record())


def test_executor_reach_is_printed_as_table_and_json(world: World) -> None:
    world.append(admitted(), started())
    record(world)
    found = world.call("-o", "json", "stats", "--since", "2025-12-31T00:00Z").json
    assert found["since"] == "2025-12-31T00:00:00Z"
    assert found["executions"] == {
        "total_executions": 1,
        "successful_executions": 1,
        "lost_executions": 0,
        "pending_executions": 0,
        "success_rate": 100.0,
    }
    assert found["recoveries"]["recovery_success_rate"] is None
    result = world.call("stats", "--since", "2025-12-31T00:00Z")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert "handed over 1" in lines
    assert "handed over, of those decided 100.00 %" in lines
    assert "successful, of those decided –" in lines


def test_one_job_is_counted_alone(world: World) -> None:
    other = {"job": "other", "execution_id": "11111111-1111-7111-8111-111111111111"}
    world.append(admitted(), started())
    world.append(admitted().changed(**other))
    record(world)
    for options, number in (((), 2), (("--job", "other"), 1), (("--job", "none"), 0)):
        found = world.call("-o", "json", "stats", "--since", "2025-12-31T00:00Z", *options).json
        assert found["executions"]["total_executions"] == number


def test_it_says_over_what_it_counts(world: World) -> None:
    assert "as far as the history has them" in " ".join(world.call("stats", "--help").out.split()).replace("│ ", "")


def test_what_is_no_instant_is_refused(world: World) -> None:
    result = world.call("stats", "--since", "yesterday")
    assert result.code == 2
    assert "--since" in result.err
    assert "'yesterday'" in result.err
