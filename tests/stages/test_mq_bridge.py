"""The bridge: executors outside see hip-62's envelope, and their answers become reports."""

import json

import pytest

from tests.domain.given import ID, JOB, admitted, plan
from tests.stages.world import World
from tocsin.domain.events import Completed, Failed, PoisonMessage, Report


async def answered(world: World, body: object, execution_id: str = ID) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    world.log.receive(f"mq.scheduler.complete.{JOB}.{execution_id}", raw)
    await run(world)


async def run(world: World) -> None:
    await world.run(world.mq_bridge, world.dag_advancer, world.retrier)


async def envelopes(world: World) -> list[dict[str, object]]:
    return [
        recorded.message.model_dump(mode="json", by_alias=True) for recorded in await world.log.read("mq.scheduled.>")
    ]


async def test_task_is_published_in_the_hip_62_envelope(world: World) -> None:
    await world.given(admitted())
    await run(world)
    [envelope] = await envelopes(world)
    assert {key: envelope[key] for key in ("schema", "type", "source")} == {
        "schema": "hanzo.mq.v1",
        "type": "scheduler.execute",
        "source": "scheduler",
    }
    data = envelope["data"]
    assert isinstance(data, dict)
    assert (data["job_name"], data["execution_id"], data["function"], data["attempt"], data["timeout"]) == (
        JOB,
        ID,
        "f/main",
        1,
        30.0,
    )


@pytest.mark.parametrize(
    "body", [b"", {}, {"status": "completed"}, {"status": "success", "result": 1}, {"step": "main", "attempt": 1}]
)
async def test_answer_without_failure_completes(world: World, body: object) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, body)
    assert len(await world.stored(Completed)) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"status": "failed"}, "unknown"),
        ({"error": "boom"}, "error"),
        ({"status": "error", "error": {"type": "ValueError", "message": "boom"}}, "ValueError"),
    ],
)
async def test_answer_with_failure_fails(world: World, body: object, error: str) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, body)
    [failed] = await world.stored(Failed)
    assert failed.error is not None
    assert failed.error.type == error


async def test_an_answer_that_comes_twice_counts_once(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, {})
    await answered(world, {})
    assert len(await world.stored(Report)) == 1


async def test_ambiguous_answer_is_refused_with_the_step_names(world: World) -> None:
    await world.given(admitted(plan({"a": (), "b": ()})))
    await run(world)
    await answered(world, {})
    [letter] = await world.stored(PoisonMessage)
    assert letter.reason == "unreadable: the completion names no step, and several are in flight: a, b"
    await answered(world, {"step": "a"})
    await answered(world, {"step": "b"})
    assert len(await world.stored(Completed)) == 1


async def test_answer_with_a_foreign_token_is_refused(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, {"token": "guessed"})
    [letter] = await world.stored(PoisonMessage)
    assert letter.reason.endswith("the token is not that of step 'main', attempt 1")
    assert await world.stored(Completed) == []


async def test_an_answer_about_nothing_known_changes_nothing(world: World) -> None:
    await answered(world, {}, execution_id="0193a5b0-0000-7000-8000-00000000ffff")
    assert await world.stored(Report) == []
    assert world.pending == 0


async def test_answer_without_an_execution_id_is_refused(world: World) -> None:
    world.log.receive("mq.scheduler.complete.lonely", b"{}")
    await run(world)
    [letter] = await world.stored(PoisonMessage)
    assert letter.reason == "unreadable: mq.scheduler.complete.lonely: names no execution"
