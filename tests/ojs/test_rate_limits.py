"""Rates of jobs at the gateway: what starts, and what is refused."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

SECOND = {"limit": 1, "period": "PT1S"}
HOUR = {"limit": 2, "period": "PT1H"}


async def push(client: httpx.AsyncClient, queue: str, rate_limit: Any = None) -> tuple[int, dict[str, Any]]:  # noqa: ANN401
    options = {"queue": queue, **({} if rate_limit is None else {"rate_limit": rate_limit})}
    answer = await client.post("/ojs/v1/jobs", json={"type": "mail.send", "args": [], "options": options})
    return answer.status_code, answer.json()


async def fetched(client: httpx.AsyncClient, queue: str, count: int = 10, wait_ms: int = 0) -> list[str]:
    body = {"queues": [queue], "count": count, "worker_id": "w", "wait_ms": wait_ms}
    answer = await client.post("/ojs/v1/workers/fetch", json=body)
    return [job["id"] for job in answer.json()["jobs"]]


@pytest.mark.parametrize(
    ("rate_limit", "number"),
    [
        ({"key": "a", "rate": HOUR}, 2),
        ({"key": "b", "throttle": {"limit": 2, "period": "PT1H"}}, 1),
        ({"rate": HOUR, "on_limit": "wait"}, 2),
    ],
)
async def test_no_more_jobs_start_than_the_rate_allows(
    client: httpx.AsyncClient, rate_limit: dict[str, Any], number: int
) -> None:
    queue = f"q{uuid4().hex}"
    if "key" in rate_limit:
        rate_limit = {**rate_limit, "key": f"{rate_limit['key']}-{queue}"}
    ids = [(await push(client, queue, rate_limit))[1]["job"]["id"] for _ in range(4)]
    assert await fetched(client, queue) == ids[:number]
    assert await fetched(client, queue) == []
    states = [(await client.get(f"/ojs/v1/jobs/{id_}")).json()["job"]["state"] for id_ in ids]
    assert states == ["active"] * number + ["available"] * (4 - number)


async def test_job_starts_when_the_rate_allows_it(client: httpx.AsyncClient) -> None:
    queue = f"q{uuid4().hex}"
    ids = [(await push(client, queue, {"rate": SECOND}))[1]["job"]["id"] for _ in range(2)]
    assert await fetched(client, queue) == ids[:1]
    assert await fetched(client, queue, wait_ms=15_000) == ids[1:]


async def test_job_without_a_limit_passes_those_that_wait(client: httpx.AsyncClient) -> None:
    queue = f"q{uuid4().hex}"
    limited = [(await push(client, queue, {"rate": {"limit": 1, "period": "PT1H"}}))[1]["job"]["id"] for _ in range(2)]
    _, free = await push(client, queue)
    assert set(await fetched(client, queue)) == {limited[0], free["job"]["id"]}


async def test_key_is_shared_by_queues(client: httpx.AsyncClient) -> None:
    first, second = f"q{uuid4().hex}", f"q{uuid4().hex}"
    policy = {"key": first, "rate": {"limit": 1, "period": "PT1H"}}
    for queue in (first, second):
        await push(client, queue, policy)
    assert [len(await fetched(client, queue)) for queue in (first, second)] == [1, 0]


@pytest.mark.parametrize(
    ("rate_limit", "field"),
    [
        ("fast", "rate_limit"),
        ({}, "rate_limit"),
        ({"key": "a"}, "rate_limit"),
        ({"rate": HOUR, "throttle": HOUR}, "rate_limit"),
        ({"rate": HOUR, "key": "-"}, "rate_limit.key"),
        ({"rate": HOUR, "key": "a" * 201}, "rate_limit.key"),
        ({"rate": {"limit": 0, "period": "PT1S"}}, "rate_limit.rate"),
        ({"rate": {"limit": 1, "period": "PT0S"}}, "rate_limit.rate"),
        ({"rate": {"limit": 1}}, "rate_limit.rate"),
        ({"rate": {"limit": 1_000, "period": "P2D"}}, "rate_limit.rate"),
        ({"throttle": {"limit": 1, "period": "P365D"}}, "rate_limit.throttle"),
        ({"max_per_second": True}, "rate_limit.max_per_second"),
        ({"max_per_second": 1, "on_limit": "drop"}, "rate_limit.on_limit"),
        ({"max_per_second": 1, "concurrency": 5}, "rate_limit.concurrency"),
    ],
)
async def test_invalid_rate_is_refused(client: httpx.AsyncClient, rate_limit: object, field: str) -> None:
    status, answer = await push(client, "default", rate_limit)
    assert (status, answer["error"]["details"]["errors"][0]["field"]) == (400, field)


@pytest.mark.parametrize(
    "rate_limit", [{"rate": {"limit": 1, "period": "P1D"}}, {"throttle": {"limit": 400, "period": "P365D"}}]
)
async def test_rate_that_refills_in_time_is_accepted(client: httpx.AsyncClient, rate_limit: object) -> None:
    assert (await push(client, f"q{uuid4().hex}", rate_limit))[0] == 201
