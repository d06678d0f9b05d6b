"""Several jobs in one request at the gateway: results, limits and repetitions."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest

ID = "01932e34-7c8a-7d4a-9f3b-1a2b3c4d5e71"


def job(number: int = 0, queue: str = "bulk", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "mail.send", "args": [number], "options": {"queue": queue}, **fields}


def unique(type_: str, on_conflict: str) -> dict[str, Any]:
    return {**job(), "type": type_, "options": {"queue": "bulk", "unique": {"on_conflict": on_conflict}}}


async def post(client: httpx.AsyncClient, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await client.post(f"/ojs/v1/jobs/{path}".rstrip("/"), json=body, headers=named)
    return answer.status_code, answer.json()


async def test_thousand_jobs_are_enqueued_at_once(client: httpx.AsyncClient) -> None:
    status, answer = await post(client, "batch", {"jobs": [job(number, "thousand") for number in range(1_000)]})
    assert (status, answer["count"]) == (201, 1_000)
    assert [shown["args"] for shown in answer["jobs"]] == [[number] for number in range(1_000)]
    assert {shown["state"] for shown in answer["jobs"]} == {"available"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (None, "jobs[1].body"),
        ({"args": []}, "jobs[1].type"),
        (job(retry={"max_attempts": -1}), "jobs[1].retry.max_attempts"),
        (unique("mail.send", "reject"), "jobs[1].unique.on_conflict"),
    ],
)
async def test_error_names_the_index_of_the_job(client: httpx.AsyncClient, wrong: object, field: str) -> None:
    queue = f"q{uuid4().hex}"
    status, answer = await post(client, "batch", {"jobs": [job(queue=queue), wrong]})
    assert status in {400, 422}
    details = answer["error"]["details"]
    assert (details["index"], details["errors"][0]["field"]) == (1, field)
    status, answer = await post(client, "bulk", {"jobs": [job(queue=queue), wrong], "atomicity": "atomic"})
    assert (status, answer["failed"]) == (422, 2)
    codes = [item["error"]["code"] for item in answer["items"]]
    assert codes[0] == "batch_rejected" != codes[1]


@pytest.mark.parametrize(
    ("jobs", "status", "results"),
    [
        ([job(), job()], 201, ["created", "created"]),
        ([job(), {"type": "", "args": []}, job()], 207, ["created", "failed", "created"]),
        ([{"type": "", "args": []}, 7], 422, ["failed", "failed"]),
        ([job(id=ID), job(id=ID)], 207, ["created", "failed"]),
    ],
)
async def test_result_of_each_job_is_reported(
    client: httpx.AsyncClient, jobs: list[Any], status: int, results: list[str]
) -> None:
    code, answer = await post(client, "bulk", {"jobs": jobs})
    failed = results.count("failed")
    assert (code, answer["total"], answer["succeeded"], answer["failed"]) == (
        status,
        len(jobs),
        len(jobs) - failed,
        failed,
    )
    assert [(item["index"], item["status"]) for item in answer["items"]] == list(enumerate(results))
    assert all(("error" in item) == (item["status"] == "failed") for item in answer["items"])


async def test_taken_id_refuses_an_atomic_batch(client: httpx.AsyncClient) -> None:
    id_ = "01932e34-7c8a-7d4a-9f3b-1a2b3c4d5e72"
    assert (await post(client, "", job(id=id_)))[0] == 201
    status, answer = await post(client, "batch", {"jobs": [job(), job(id=id_)]})
    assert (status, answer["error"]["code"], answer["error"]["details"]["index"]) == (409, "duplicate", 1)


async def test_duplicates_are_reported(client: httpx.AsyncClient) -> None:
    type_ = f"t{uuid4().hex}"
    jobs = [unique(type_, "ignore"), unique(type_, "ignore"), unique(type_, "reject")]
    assert (await post(client, "", jobs[0]))[0] == 201
    status, answer = await post(client, "bulk", {"jobs": jobs})
    assert (status, [item["status"] for item in answer["items"]]) == (207, ["duplicate", "duplicate", "failed"])
    assert answer["items"][2]["error"]["code"] == "duplicate"


@pytest.mark.parametrize("path", ["batch", "bulk"])
async def test_repeated_request_enqueues_nothing(client: httpx.AsyncClient, path: str) -> None:
    key, queue = uuid4().hex, f"q{uuid4().hex}"
    body = {"jobs": [job(number, queue) for number in range(3)]}
    first = await post(client, path, body, Idempotency_Key=key)
    assert await post(client, path, body, Idempotency_Key=key) == first
    status, answer = await post(client, path, {"jobs": [job()]}, Idempotency_Key=key)
    assert (status, answer["error"]["code"]) == (409, "conflict")


async def test_key_may_be_in_the_body(client: httpx.AsyncClient) -> None:
    body = {"jobs": [job()], "idempotency_key": uuid4().hex}
    first = await post(client, "bulk", body)
    assert await post(client, "bulk", body) == first
    status, answer = await post(client, "bulk", {**body, "idempotency_key": "x" * 257})
    assert (status, answer["error"]["details"]["errors"][0]["field"]) == (400, "idempotency_key")


async def test_listed_jobs_are_cancelled(client: httpx.AsyncClient) -> None:
    _, answer = await post(client, "batch", {"jobs": [job(), job()]})
    ids = [shown["id"] for shown in answer["jobs"]]
    status, answer = await post(client, "bulk/cancel", {"job_ids": [*ids, "no-id"]})
    assert (status, answer["total_matched"], answer["cancelled"], answer["skipped"]) == (207, 3, 2, 1)
    assert [item["status"] for item in answer["items"]] == ["cancelled", "cancelled", "skipped"]
    assert (await post(client, "bulk/cancel", {"job_ids": ids}))[0] == 422


async def states_of(client: httpx.AsyncClient, ids: dict[str, str]) -> dict[str, str]:
    answers = {name: await client.get(f"/ojs/v1/jobs/{id_}") for name, id_ in ids.items()}
    return {name: answer.json()["job"]["state"] for name, answer in answers.items()}


@pytest.mark.parametrize(
    ("chosen", "cancelled"),
    [
        ({}, {"plain", "other-type", "urgent", "later"}),
        ({"type": "mail.other"}, {"other-type"}),
        ({"state": ["scheduled"]}, {"later"}),
        ({"state": ["available", "retryable"]}, {"plain", "other-type", "urgent", "failed"}),
        ({"priority": 7}, {"urgent"}),
        ({"meta": {"team": "a"}}, {"urgent"}),
        ({"meta": {"team": "a", "more": None}}, set()),
        ({"enqueued_before": "2020-01-01T00:00:00Z"}, set()),
        ({"enqueued_after": "2020-01-01T00:00:00+01:00", "type": "mail.other"}, {"other-type"}),
    ],
)
async def test_filtered_jobs_are_cancelled(
    client: httpx.AsyncClient, chosen: dict[str, Any], cancelled: set[str]
) -> None:
    """A filter cancels jobs that wait, and none that a worker has."""
    queue = f"q{uuid4().hex}"
    retry = {"max_attempts": 3, "initial_interval": "PT1H", "jitter": False}
    given = {
        "failed": job(queue=queue, retry=retry),
        "active": job(queue=queue),
        "plain": job(queue=queue),
        "other-type": {**job(queue=queue), "type": "mail.other"},
        "urgent": {**job(queue=queue), "options": {"queue": queue, "priority": 7}, "meta": {"team": "a"}},
        "later": job(queue=queue, options={"queue": queue, "scheduled_at": "2090-01-01T00:00:00Z"}),
    }
    ids: dict[str, str] = {}
    for name, body in given.items():
        ids[name] = (await post(client, "", body))[1]["job"]["id"]
        if name in {"failed", "active"}:
            fetched = await client.post(
                "/ojs/v1/workers/fetch", json={"queues": [queue], "worker_id": "w", "wait_ms": 9_000}
            )
            assert [task["id"] for task in fetched.json()["jobs"]] == [ids[name]]
        if name == "failed":
            nack = {"job_id": ids[name], "worker_id": "w", "error": {"message": "broken"}}
            assert (await client.post("/ojs/v1/workers/nack", json=nack)).status_code == 200
    before = await states_of(client, ids)
    assert (before["failed"], before["active"], before["later"]) == ("retryable", "active", "scheduled")
    status, answer = await post(client, "bulk/cancel", {"filter": {"queue": queue, **chosen}})
    assert (status, answer["cancelled"], answer["skipped"], answer["next_cursor"]) == (200, len(cancelled), 0, None)
    assert {item["job_id"] for item in answer["items"]} == {ids[name] for name in cancelled}
    assert await states_of(client, ids) == {**before, **dict.fromkeys(cancelled, "cancelled")}
    again = await post(client, "bulk/cancel", {"filter": {"queue": queue, **chosen}})
    assert (again[0], again[1]["total_matched"]) == (200, 0)


async def test_filter_leaves_workflows_out(client: httpx.AsyncClient) -> None:
    queue = f"q{uuid4().hex}"
    chain = {"type": "chain", "steps": [{"type": "a", "args": [], "options": {"queue": queue}}]}
    created = await client.post("/ojs/v1/workflows", json=chain)
    assert created.status_code == 201, created.text
    status, answer = await post(client, "bulk/cancel", {"filter": {"queue": queue}})
    assert (status, answer["total_matched"]) == (200, 0)


async def test_repeated_filter_gets_the_same_answer(client: httpx.AsyncClient) -> None:
    key, queue = uuid4().hex, f"q{uuid4().hex}"
    body = {"filter": {"queue": queue}}
    assert (await post(client, "", job(queue=queue)))[0] == 201
    first = await post(client, "bulk/cancel", body, Idempotency_Key=key)
    assert first[1]["cancelled"] == 1
    await post(client, "", job(queue=queue))
    assert await post(client, "bulk/cancel", body, Idempotency_Key=key) == first


async def test_filtered_dead_letters_are_retried(client: httpx.AsyncClient) -> None:
    queue, ids = f"q{uuid4().hex}", dict[str, str]()
    policy = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    for type_ in ("mail.send", "mail.other"):
        _, pushed = await post(client, "", {**job(queue=queue, retry=policy), "type": type_})
        ids[type_] = pushed["job"]["id"]
        await client.post("/ojs/v1/workers/fetch", json={"queues": [queue], "worker_id": "w", "wait_ms": 9_000})
        nack = {"job_id": ids[type_], "worker_id": "w", "error": {"message": "broken"}}
        assert (await client.post("/ojs/v1/workers/nack", json=nack)).status_code == 200
    async with asyncio.timeout(60):  # a stage makes the dead letters
        while True:
            listed = (await client.get("/ojs/v1/dead-letter", params={"queue": queue})).json()
            if listed["pagination"]["total"] == len(ids):
                break
            await asyncio.sleep(0.1)
    status, answer = await post(client, "bulk/retry", {"filter": {"queue": queue, "type": "mail.other"}})
    assert (status, answer["retried"], answer["next_cursor"]) == (200, 1, None)
    assert [item["job_id"] for item in answer["items"]] == [ids["mail.other"]]
    assert await states_of(client, ids) == {"mail.send": "discarded", "mail.other": "available"}
    status, answer = await post(client, "bulk/retry", {"filter": {"queue": queue}})
    assert [item["job_id"] for item in answer["items"]] == [ids["mail.send"]]


async def test_invalid_list_cancels_no_job(client: httpx.AsyncClient) -> None:
    _, pushed = await post(client, "", job())
    id_ = pushed["job"]["id"]
    status, answer = await post(client, "bulk/cancel", {"job_ids": [id_, 7]})
    assert (status, answer["error"]["details"]["errors"][0]["field"]) == (400, "job_ids[1]")
    assert (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["state"] == "available"
    status, answer = await post(client, "bulk/cancel", {"job_ids": [id_]})
    assert (status, answer["cancelled"]) == (200, 1)


async def test_listed_dead_letters_are_retried(client: httpx.AsyncClient) -> None:
    queue = f"q{uuid4().hex}"
    policy = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    _, pushed = await post(client, "", job(queue=queue, retry=policy))
    _, other = await post(client, "", job(queue=queue, retry=policy))
    id_ = pushed["job"]["id"]
    fetched = await client.post("/ojs/v1/workers/fetch", json={"queues": [queue], "worker_id": "w"})
    assert [task["id"] for task in fetched.json()["jobs"]] == [id_]
    nack = {"job_id": id_, "worker_id": "w", "error": {"message": "broken"}}
    assert (await client.post("/ojs/v1/workers/nack", json=nack)).status_code == 200
    status, answer = await post(client, "bulk/retry", {"job_ids": [id_, other["job"]["id"]]})
    assert (status, [item["status"] for item in answer["items"]]) == (207, ["retried", "skipped"])
    assert (await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["state"] == "available"


async def test_null_fields_are_as_absent(client: httpx.AsyncClient) -> None:
    queue = f"q{uuid4().hex}"
    _, first = await post(client, "", job(queue=queue))
    body = {"job_ids": [first["job"]["id"]], "filter": None, "cursor": None}
    status, answer = await post(client, "bulk/cancel", body)
    assert (status, answer["cancelled"]) == (200, 1)
    _, second = await post(client, "", job(queue=queue))
    status, answer = await post(client, "bulk/cancel", {"job_ids": None, "filter": {"queue": queue}, "cursor": None})
    assert (status, [item["job_id"] for item in answer["items"]]) == (200, [second["job"]["id"]])


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("bulk", {"jobs": []}, "jobs"),
        ("bulk", {}, "jobs"),
        ("bulk", {"jobs": [{}], "atomicity": "some"}, "atomicity"),
        ("bulk", {"jobs": [{}], "atomicity": []}, "atomicity"),
        ("bulk/cancel", {"job_ids": [7]}, "job_ids[0]"),
        ("bulk/cancel", {"filter": {"queue": "bulk"}, "job_ids": ["a"]}, "filter"),
        ("bulk/cancel", {"filter": {}}, "filter"),
        ("bulk/cancel", {"filter": ["bulk"]}, "filter"),
        ("bulk/cancel", {"filter": {"tags": ["a"]}}, "filter.tags"),
        ("bulk/cancel", {"filter": {"queue": 7}}, "filter.queue"),
        ("bulk/cancel", {"filter": {"state": ["active"]}}, "filter.state"),
        ("bulk/cancel", {"filter": {"state": ["discarded"]}}, "filter.state"),
        ("bulk/cancel", {"filter": {"state": []}}, "filter.state"),
        ("bulk/cancel", {"filter": {"enqueued_before": "2026-01-01T00:00:00"}}, "filter.enqueued_before"),
        ("bulk/cancel", {"filter": {"enqueued_after": 7}}, "filter.enqueued_after"),
        ("bulk/cancel", {"filter": {"priority": "1"}}, "filter.priority"),
        ("bulk/cancel", {"filter": {"meta": []}}, "filter.meta"),
        ("bulk/cancel", {"filter": {"meta": {}}}, "filter.meta"),
        ("bulk/cancel", {"filter": {"type": None}}, "filter.type"),
        ("bulk/cancel", {"filter": {"queue": None}}, "filter.queue"),
        ("bulk/cancel", {"filter": {"queue": "bulk", "state": None}}, "filter.state"),
        ("bulk/cancel", {"filter": {"enqueued_before": None}}, "filter.enqueued_before"),
        ("bulk/cancel", {"filter": {"enqueued_after": None}}, "filter.enqueued_after"),
        ("bulk/cancel", {"filter": {"priority": None}}, "filter.priority"),
        ("bulk/cancel", {"filter": {"meta": None}}, "filter.meta"),
        ("bulk/cancel", {"filter": {"queue": "bulk"}, "cursor": "nonsense"}, "cursor"),
        ("bulk/cancel", {"filter": {"queue": "bulk"}, "cursor": "pending:nonsense"}, "cursor"),
        ("bulk/cancel", {"filter": {"queue": "bulk"}, "cursor": 7}, "cursor"),
        ("bulk/cancel", {"job_ids": ["a"], "cursor": "pending:0"}, "cursor"),
        ("bulk/retry", {"filter": {"state": ["available"]}}, "filter.state"),
        ("bulk/retry", {"filter": {"queue": None}}, "filter.queue"),
        ("bulk/retry", {"filter": {"meta": {}}}, "filter.meta"),
        ("bulk/retry", {"filter": {"queue": "bulk"}, "cursor": "nonsense"}, "cursor"),
        ("bulk/retry", {"job_ids": ["a"], "atomicity": "atomic"}, "atomicity"),
    ],
)
async def test_invalid_body_is_refused(client: httpx.AsyncClient, path: str, body: object, field: str) -> None:
    status, answer = await post(client, path, body)
    assert (status, answer["error"]["details"]["errors"][0]["field"]) == (400, field)
