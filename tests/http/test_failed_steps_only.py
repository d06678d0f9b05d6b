"""A replay of only the failed steps, requested over HTTP."""

import pytest

from tests.cli.test_dead_letters import letter
from tests.domain.given import ID, JOB, admitted, plan, report, started
from tests.http.conftest import World
from tocsin.domain import execution
from tocsin.domain.events import Message, Recorded, Replayed
from tocsin.testing import START

GRAPH = {"extract": (), "load": ("extract",)}


def facts() -> list[Message]:
    """Return the events of an execution whose second step failed."""
    stored: list[Message] = [admitted(plan(GRAPH))]

    def state() -> execution.Execution:
        return execution.fold(Recorded(fact, "", n, START) for n, fact in enumerate(stored, start=1))

    stored += execution.dispatch(state(), key=b"k")
    stored.append(started("extract"))
    stored += execution.succeed(state(), report("completed", "extract", result=1), key=b"k")
    stored.append(started("load"))
    error = {"type": "ValueError", "message": "boom", "retryable": False}
    stored += execution.fail(state(), report("failed", "load", error=error), at=START)
    return stored


@pytest.fixture
async def failed(world: World) -> World:
    await world.given(
        name=JOB, function=None, dag=[{"name": n, "function": f"f/{n}", "depends_on": [*d]} for n, d in GRAPH.items()]
    )
    sequence = 0
    for fact in facts():
        sequence = await world.log.append(fact, expect=sequence)
    await world.log.append(letter().changed(definition=1), expect=0)
    return world


async def test_request_is_recorded_with_its_replay(failed: World) -> None:
    answer = await failed.ask("POST", f"/v1/dead-letters/{ID}/replay", {"failed_only": True})
    assert answer.status_code == 202, answer.text
    [replayed] = [recorded.message for recorded in await failed.facts("dead-letter.*.*.replayed.>")]
    assert isinstance(replayed, Replayed)
    assert replayed.failed_only


async def test_another_input_answers_409(failed: World) -> None:
    body = {"failed_only": True, "input": {"day": "friday"}}
    answer = await failed.ask("POST", f"/v1/dead-letters/{ID}/replay", body)
    assert (answer.status_code, "original input" in answer.json()["detail"]) == (409, True)
    assert not await failed.facts("dead-letter.*.*.replayed.>")
