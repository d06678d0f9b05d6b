"""Several jobs in one request: what is stored, also if a copy of the API dies."""

from datetime import timedelta
from typing import Any

import pytest

from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.http.ojs import batches
from tocsin.domain import execution_plan
from tocsin.domain.events import Enqueued, Recorded
from tocsin.ports import LogUnavailable, Publish
from tocsin.services.operations import event_waiter

JOBS = [{"type": "mail.send", "args": [number]} for number in range(3)]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No planner runs here."""
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", ())
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())


async def bulk(world: World, path: str = "bulk", **body: Any) -> Any:  # noqa: ANN401 - JSON
    answer = await world.ask("POST", f"/ojs/v1/jobs/{path}", {"jobs": JOBS, **body})
    return answer.json()


async def requests(world: World) -> list[Recorded[Enqueued]]:
    return await world.facts("enqueue.>")  # type: ignore[return-value] # only such are there


@pytest.mark.parametrize("body", [{}, {"atomicity": "atomic"}])
async def test_jobs_are_stored_in_their_order(world: World, body: dict[str, Any]) -> None:
    answer = await bulk(world, **body)
    assert [fact.message.definition.args for fact in await requests(world)] == [(0,), (1,), (2,)]
    assert [item["job"]["id"] for item in answer["items"]] == [f.message.execution_id for f in await requests(world)]


@pytest.mark.parametrize("path", ["batch", "bulk"])
async def test_nothing_is_stored_if_the_log_refuses(world: World, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def refuse(_: list[Publish]) -> None:
        raise LogUnavailable("full")

    monkeypatch.setattr(world.log, "publish_together", refuse)
    answer = await world.ask("POST", f"/ojs/v1/jobs/{path}", {"jobs": JOBS})
    assert (answer.status_code, answer.headers["Retry-After"], await requests(world)) == (503, "1", [])


@pytest.mark.parametrize("is_planned", [True, False])
async def test_jobs_of_a_dead_copy_are_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_planned: bool
) -> None:
    """The jobs are stored without an answer, and the log's duplicate window has passed."""
    store = world.log.publish_together

    async def store_and_die(inputs: list[Publish]) -> None:
        await store(inputs)
        raise LogUnavailable("the copy dies here")

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "publish_together", store_and_die)
        assert (await bulk(world, idempotency_key="k"))["error"]["code"] == "backend_error"
    if is_planned:
        for fact in await requests(world):
            await world.log.append(execution_plan.from_enqueued(fact), expect=0)
    world.clock.advance(timedelta(hours=1).total_seconds())
    first = await bulk(world, idempotency_key="k")
    assert await bulk(world, idempotency_key="k") == first
    assert (first["total"], first["succeeded"]) == (3, 3)
    stored = [fact.message.execution_id for fact in await requests(world)]
    assert [item["job"]["id"] for item in first["items"]] == stored[:3] == (stored[3:] or stored[:3])
    assert is_planned == (len(stored) == 3)


async def test_taken_ids_of_others_are_not_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is tried again finds only what its own caller enqueued."""
    id_ = "01932e34-7c8a-7d4a-9f3b-1a2b3c4d5e70"
    await world.ask("POST", "/ojs/v1/jobs", {"type": "secret.work", "args": [], "id": id_})
    [fact] = await requests(world)
    owned = execution_plan.from_enqueued(fact)
    await world.log.append(
        owned.model_copy(update={"by": owned.by and owned.by.model_copy(update={"identity": "x"})}), expect=0
    )

    jobs = [{**JOBS[0], "id": id_}, JOBS[1]]
    with monkeypatch.context() as patch:
        patch.setattr("tocsin.services.operations.execution_requests.taken", die_of_taken)
        await bulk(world, jobs=jobs, idempotency_key="k")
    world.clock.advance(timedelta(hours=1).total_seconds())
    again = await bulk(world, jobs=jobs, idempotency_key="k")
    assert [item["status"] for item in again["items"]] == ["failed", "created"]
    assert "secret" not in str(again)


async def die_of_taken(*_: object, **__: object) -> list[int]:
    raise LogUnavailable("the copy dies here")


@pytest.mark.parametrize("path", ["batch", "bulk"])
async def test_too_many_jobs_are_refused(world: World, path: str) -> None:
    answer = await world.ask("POST", f"/ojs/v1/jobs/{path}", {"jobs": [{}] * (batches.MAX_BATCH + 1)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "batch_size_exceeded")
    assert error["details"]["max_batch_size"] == 1_000
    assert answer.headers["X-OJS-Max-Batch-Size"] == "1000"


async def test_answer_that_is_too_large_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.adapters.http.middleware.idempotency.MAX_ANSWER_BYTES", 10)
    first, second = [await bulk(world, idempotency_key="k") for _ in range(2)]
    assert [item["job"]["id"] for item in first["items"]] == [item["job"]["id"] for item in second["items"]]
    assert len(await world.log.read("enqueue.>")) == 3
    assert subjects.matches("enqueue.>", (await requests(world))[0].subject)
