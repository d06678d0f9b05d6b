"""`Idempotency-Key`: one effect and one answer, for repetitions, other copies and crashes."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest

from tests.http.conftest import World
from tocsin.adapters.http.auth.authentication import TOKEN_CHECK_S
from tocsin.adapters.http.middleware import idempotency
from tocsin.adapters.http.middleware.idempotency import ANSWER_LIFETIME, Answer
from tocsin.domain.access import Role
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket

JOB = {"name": "new", "schedule": "@daily", "function": "f"}


async def test_same_key_gives_same_answer_without_second_effect(world: World) -> None:
    await world.given()
    first = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"a": 1}}, Idempotency_Key="k")
    second = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"a": 1}}, Idempotency_Key="k")
    assert (second.status_code, second.json()) == (first.status_code, first.json())
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(await world.facts("trigger.job.>")) == 1


async def test_concurrent_duplicates_over_two_copies_have_one_effect(world: World) -> None:
    await world.given()
    copies = [world.copy(), world.copy()]
    answers = await asyncio.gather(
        *(
            copies[number % 2].post("/v1/jobs/job/trigger", json={}, headers={"Idempotency-Key": "k"})
            for number in range(20)
        )
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["execution_id"] for answer in answers}) == 1
    assert len(await world.facts("trigger.job.>")) == 1


async def test_another_body_under_the_same_key_is_refused(world: World) -> None:
    await world.given()
    await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"a": 1}}, Idempotency_Key="k")
    other = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"a": 2}}, Idempotency_Key="k")
    assert other.status_code == 422
    assert other.json()["type"] == "urn:tocsin:problem:idempotency-key-reused"
    assert len(await world.facts("trigger.job.>")) == 1


async def test_key_belongs_to_its_path_and_caller(world: World) -> None:
    await world.given(name="a")
    await world.given(name="b")
    one = await world.ask("POST", "/v1/jobs/a/trigger", {}, Idempotency_Key="k")
    two = await world.ask("POST", "/v1/jobs/b/trigger", {}, Idempotency_Key="k")
    assert one.json()["execution_id"] != two.json()["execution_id"]
    token = await world.token("other", Role.ADMIN)
    world.clock.advance(TOKEN_CHECK_S)
    three = await world.ask("POST", "/v1/jobs/a/trigger", {}, Idempotency_Key="k", Authorization=f"Bearer {token}")
    assert three.status_code == 202
    assert three.json() != one.json()


async def test_refused_request_can_be_sent_again(world: World) -> None:
    refused = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    assert refused.status_code == 404
    await world.given()
    assert (await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")).status_code == 202


async def test_headers_of_an_answer_come_again(world: World) -> None:
    first = await world.ask("POST", "/v1/jobs", JOB, Idempotency_Key="k")
    again = await world.ask("POST", "/v1/jobs", JOB, Idempotency_Key="k")
    assert again.status_code == 201
    assert {again.headers[name] for name in ("ETag", "Location")} == {first.headers["ETag"], "/v1/jobs/new"}


async def dying(publish: Callable[..., Awaitable[int]], *args: object, **more: object) -> int:
    """Store a message, without an answer."""
    await publish(*args, **more)
    raise LogUnavailable("the copy dies here")


async def test_request_of_a_dead_copy_is_not_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trigger is stored without an answer, and the log's duplicate window has passed."""
    await world.given()

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "publish", partial(dying, world.log.publish))
        first = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    assert first.status_code == 503
    world.clock.advance(timedelta(hours=1).total_seconds())
    second = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    third = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    assert second.status_code == 202
    assert third.json() == second.json()
    assert len(await world.facts("trigger.job.>")) == 1


async def test_claim_is_taken_over_after_its_holder_died(world: World) -> None:
    await world.given()
    first = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    [(key, value)] = (await world.projections.entries(Bucket.ANSWERS)).items()
    claim = Answer.model_validate_json(value).model_copy(update={"status": None, "body": "", "headers": {}})
    await world.projections.put(Bucket.ANSWERS, key, claim.model_dump_json().encode())

    again = asyncio.create_task(world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k"))
    while not again.done():
        await asyncio.sleep(0.01)
        assert not again.done() or world.clock.monotonic() > world.settings.server.request_timeout
        world.clock.advance(5)
    answer = await again
    if answer.status_code == 409:  # it had waited for as long as it may
        answer = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    assert answer.json() == first.json()
    assert len(await world.facts("trigger.job.>")) == 1


async def test_refusal_after_a_possible_effect_keeps_the_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given()

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "publish", partial(dying, world.log.publish))
        await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    await world.registry.delete("job")
    world.clock.advance(timedelta(minutes=10).total_seconds())
    assert (await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")).status_code == 404
    await world.given()
    world.clock.advance(timedelta(minutes=10).total_seconds())
    assert (await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")).status_code == 202
    assert len(await world.facts("trigger.job.>")) == 1


async def test_an_answer_is_forgotten_after_a_day(world: World) -> None:
    await world.given()
    await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key="k")
    world.clock.advance(ANSWER_LIFETIME.total_seconds())
    assert not await world.projections.entries(Bucket.ANSWERS)


@pytest.mark.parametrize("key", ["", "x" * 257, "a\tb"])
async def test_a_key_must_be_readable(world: World, key: str) -> None:
    await world.given()
    answer = await world.ask("POST", "/v1/jobs/job/trigger", {}, Idempotency_Key=key)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["Idempotency-Key"]


READS = {
    "applyJobs": ("/v1/jobs:apply", {"jobs": [JOB], "dry_run": True}),
    "backfillJob": (
        "/v1/jobs/job/backfill",
        {"start": "2025-01-01T00:00:00Z", "end": "2025-01-03T00:00:00Z", "name": "b", "dry_run": True},
    ),
    "replayAllDeadLetters": ("/v1/dead-letters/replay-all", {"dry_run": True}),
    "purgeQueue": ("/v1/queues/default/purge?dry_run=true", {}),
    "runSql": ("/v1/sql", {"sql": "SHOW JOBS; SELECT * FROM sys.jobs; SHOW CREATE JOB job"}),
}
"""Requests without an effect, to every operation with a key that has them."""


def test_every_operation_with_a_dry_run_is_known(world: World) -> None:
    document = world.app().openapi()
    dry = set()
    for path in document["paths"].values():
        operation = path.get("post", {})
        if not any(each["name"] == idempotency.HEADER for each in operation.get("parameters", ())):
            continue
        names = re.findall(r"#/components/schemas/(\w+)", json.dumps(operation.get("requestBody", {})))
        bodies = [document["components"]["schemas"][name] for name in names]
        if "dry_run" in json.dumps([operation["parameters"], bodies]):
            dry.add(operation["operationId"])
    assert dry | {"runSql"} == READS.keys()


@pytest.mark.parametrize("operation", READS)
async def test_request_without_effect_stores_nothing_under_its_key(world: World, operation: str) -> None:
    await world.given()
    path, body = READS[operation]
    first = await world.ask("POST", path, body, Idempotency_Key="k")
    assert first.status_code < 300, first.text
    assert not await world.projections.entries(Bucket.ANSWERS)
    again = await world.ask("POST", path, body, Idempotency_Key="k")
    assert again.status_code == first.status_code
    assert "Idempotency-Replayed" not in again.headers


async def test_stored_bytes_of_a_caller_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, number = 50_000, 30
    monkeypatch.setattr(idempotency, "MAX_CALLER_BYTES", limit)
    world.client = world.copy()
    tokens = {name: f"Bearer {await world.token(name, Role.ADMIN)}" for name in ("ada", "bea")}
    for n in range(number):
        job = {**JOB, "name": f"job-{n}", "description": "x" * 5_000}
        answer = await world.ask("POST", "/v1/jobs", job, Idempotency_Key=f"k{n}", Authorization=tokens["ada"])
        assert answer.status_code == 201, answer.text
    stored = [Answer.model_validate_json(value) for value in (await world.projections.entries(Bucket.ANSWERS)).values()]
    assert len(stored) == number
    assert 0 < sum(len(answer.body) for answer in stored) <= limit
    repeated = await world.ask("POST", "/v1/jobs/job-0/trigger", {}, Idempotency_Key="t", Authorization=tokens["bea"])
    replayed = await world.ask("POST", "/v1/jobs/job-0/trigger", {}, Idempotency_Key="t", Authorization=tokens["bea"])
    assert replayed.json() == repeated.json()
    assert replayed.headers["Idempotency-Replayed"] == "true"


async def test_answer_left_out_has_no_second_effect(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given()
    monkeypatch.setattr(idempotency, "MAX_CALLER_BYTES", 1)
    world.client = world.copy()
    first = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"a": 1}}, Idempotency_Key="k")
    again = await world.ask("POST", "/v1/jobs/job/trigger", {"input": {"a": 1}}, Idempotency_Key="k")
    assert again.json()["execution_id"] == first.json()["execution_id"]
    assert len(await world.facts("trigger.job.>")) == 1
