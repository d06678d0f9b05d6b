"""Several jobs reported as completed in one request."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.ojs.test_gateway import fetched, fresh, pushed, told
from tests.ojs.test_workflows import created, until

UNKNOWN = "01932e34-7c8a-7d4a-9f3b-1a2b3c4d5e6f"


async def acknowledged(client: httpx.AsyncClient, *acks: dict[str, Any], **more: Any) -> tuple[int, Any]:  # noqa: ANN401
    return await told(client, "ack/batch", acks=list(acks), **more)


async def taken(client: httpx.AsyncClient, count: int, **more: Any) -> list[str]:  # noqa: ANN401 - fields
    queue = fresh()
    for _ in range(count):
        await pushed(client, queue)
    ids: list[str] = []
    while len(ids) < count:
        ids += [job["id"] for job in await fetched(client, queue, count=count, **more)]
    return ids


async def test_each_job_completes_with_its_result(client: httpx.AsyncClient) -> None:
    ids = await taken(client, 20)
    status, answer = await acknowledged(client, *({"job_id": id_, "result": n} for n, id_ in enumerate(ids)))
    assert (status, answer["total"], answer["acknowledged"], answer["failed"]) == (200, 20, 20, 0)
    assert [(item["job_id"], item["status"], item["state"]) for item in answer["items"]] == [
        (id_, "acknowledged", "completed") for id_ in ids
    ]
    for number, id_ in enumerate(ids):
        job = (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]
        assert (job["state"], job["result"]) == ("completed", number)


async def test_failed_acks_affect_no_others(client: httpx.AsyncClient) -> None:
    one, held, big, lost = await taken(client, 4, worker_id="w")
    assert (await told(client, "ack", job_id=lost))[0] == 200
    acks = [{"job_id": id_} for id_ in (lost, UNKNOWN, "*", one)]
    status, answer = await acknowledged(client, *acks, {"job_id": big, "result": "x" * 70_000}, worker_id="w")
    codes = [item.get("error", {}).get("code") for item in answer["items"]]
    assert (status, codes) == (207, ["conflict", "not_found", "invalid_request", None, "envelope_too_large"])
    states = [(await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["state"] for id_ in (one, big, held)]
    assert states == ["completed", "discarded", "active"]
    status, answer = await acknowledged(client, {"job_id": held}, worker_id="other")
    assert (status, answer["items"][0]["error"]["code"]) == (422, "conflict")


async def test_jobs_of_a_workflow_complete_together(client: httpx.AsyncClient) -> None:
    queue = fresh()
    member = {"type": "t.a", "args": [], "options": {"queue": queue}}
    workflow = await created(client, {"type": "group", "jobs": [member] * 10})
    ids: list[str] = []
    while len(ids) < 10:
        ids += [job["id"] for job in await fetched(client, queue, count=10)]
    status, _ = await acknowledged(client, *({"job_id": id_} for id_ in ids))
    assert status == 200
    await until(client, workflow["id"], "completed")


@pytest.mark.parametrize(
    ("acks", "field"),
    [
        (None, "acks"),
        ([], "acks"),
        ([{"job_id": "a"}] * 101, "acks"),
        ([1], "acks[0].job_id"),
        ([{"job_id": "a"}, {"result": 1}], "acks[1].job_id"),
        ([{"job_id": "a", "error": {}}], "acks[0].error"),
        ([{"job_id": "a"}, {"job_id": "b"}, {"job_id": "a", "result": 2}], "acks[2].job_id"),
        ([{"job_id": "a" * 513}], "acks[0].job_id"),
    ],
)
async def test_invalid_batch_reports_nothing(client: httpx.AsyncClient, acks: object, field: str) -> None:
    status, answer = await told(client, "ack/batch", acks=acks)
    assert (status, answer["error"]["details"]["errors"][0]["field"]) == (400, field)


async def test_jobs_of_a_large_workflow_complete_together(client: httpx.AsyncClient) -> None:
    """Each ack reads the whole workflow: together more than the server lets a client have unread."""
    queue, count = fresh(), 60
    member = {"type": "t.a", "args": [], "options": {"queue": queue}}
    workflow = await created(client, {"type": "group", "jobs": [member] * count})
    ids: list[str] = []
    while len(ids) < count:
        ids += [job["id"] for job in await fetched(client, queue, count=count)]
    size = {"result": "x" * 60_000}
    status, _ = await acknowledged(client, *({"job_id": id_, **size} for id_ in ids[: count // 2]))
    assert status == 200
    answers = await asyncio.gather(*(told(client, "ack", job_id=id_, **size) for id_ in ids[count // 2 :]))
    assert {status for status, _ in answers} == {200}
    await until(client, workflow["id"], "completed")


@pytest.mark.parametrize("report", ["ack", "nack", "heartbeat"])
async def test_id_without_bounds_is_refused(client: httpx.AsyncClient, report: str) -> None:
    """Such an id makes a subject that is longer than a message may be."""
    field = "active_jobs" if report == "heartbeat" else "job_id"
    huge = "a" * 1_500_000
    status, _ = await told(client, report, **{field: [huge] if report == "heartbeat" else huge, "worker_id": "w"})
    assert status in {200, 400, 404, 422}


async def test_result_that_cannot_be_stored_affects_no_other(client: httpx.AsyncClient) -> None:
    ids = await taken(client, 3)
    acks = [{"job_id": id_, "result": result} for id_, result in zip(ids, ("a", "\ud800", "c"), strict=True)]
    answer = await client.post("/ojs/v1/workers/ack/batch", content=json.dumps({"acks": acks}))
    assert (answer.status_code, [item["status"] for item in answer.json()["items"]]) == (
        207,
        ["acknowledged", "failed", "acknowledged"],
    )
    assert answer.json()["items"][1]["error"]["code"] == "invalid_request"
