"""`/ojs/v1/admin` with the stages of an installation: counts, workers, and dead letters that are retried."""

import asyncio
from typing import Any

import httpx

from tests.ojs.test_gateway import fetched, fresh, pushed, told

ADMIN = "/ojs/v1/admin"
POLICY = {"max_attempts": 1, "on_exhaustion": "dead_letter"}


async def dead(client: httpx.AsyncClient, queue: str, number: int) -> list[dict[str, Any]]:
    """Wait for the dead letters of a queue; a stage makes them."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get(f"{ADMIN}/dead-letter", params={"queue": queue})
            assert answer.status_code == 200, answer.text
            items: list[dict[str, Any]] = answer.json()["items"]
            if len(items) == number:
                return items
            await asyncio.sleep(0.1)


async def failed(client: httpx.AsyncClient, queue: str) -> str:
    """Fetch a job and let it fail."""
    [job] = await fetched(client, queue, worker_id="w")
    assert (await told(client, "nack", job_id=job["id"], worker_id="w", error={"message": "broken"}))[0] == 200
    id_: str = job["id"]
    return id_


async def test_dead_letters_are_retried_again_by_filter(client: httpx.AsyncClient) -> None:
    """A job keeps its id, and is listed once, however often it failed."""
    queue = fresh()
    job = await pushed(client, queue, options={"retry": POLICY})
    body = {"filter": {"queue": queue, "state": "discarded", "type": "mail.*"}, "confirm": True}
    for _ in range(2):
        assert await failed(client, queue) == job["id"]
        [item] = await dead(client, queue, 1)
        assert (item["id"], item["state"]) == (job["id"], "discarded")
        answer = (await client.post(f"{ADMIN}/jobs/bulk/retry", json=body)).json()
        assert (answer["action"], answer["matched"], answer["succeeded"], answer["errors"]) == ("retry", 1, 1, [])
        assert (await client.get(f"{ADMIN}/jobs/{job['id']}")).json()["state"] == "available"
    assert await failed(client, queue) == job["id"]
    await dead(client, queue, 1)
    assert (await client.delete(f"/ojs/v1/dead-letter/{job['id']}")).status_code == 200
    await dead(client, queue, 0)


async def test_queues_jobs_and_workers_are_counted(client: httpx.AsyncClient) -> None:
    queue = fresh()
    for _ in range(3):
        await pushed(client, queue)
    worker = f"worker-{queue}"
    [active] = await fetched(client, queue, worker_id=worker)
    async with asyncio.timeout(60):  # the recorder and the matcher write what the lists show
        while True:
            counts = (await client.get(f"{ADMIN}/queues/{queue}")).json().get("counts", {})
            workers = (await client.get(f"{ADMIN}/workers", params={"per_page": 100})).json()["items"]
            if (counts.get("available"), counts.get("active")) == (2, 1) and worker in {
                item["name"] for item in workers
            }:
                break
            await asyncio.sleep(0.1)
    listed = (await client.get(f"{ADMIN}/jobs", params={"queue": queue, "state": "active"})).json()
    assert [item["id"] for item in listed["items"]] == [active["id"]]
    stats = (await client.get(f"{ADMIN}/stats")).json()
    assert stats["jobs"]["available"] >= 2
    assert (stats["queues"] >= 1, stats["workers"] >= 1) == (True, True)


async def test_operator_directs_a_worker_over_http(client: httpx.AsyncClient) -> None:
    """The worker keeps its jobs, and gets no more."""
    queue = fresh()
    worker, other = f"worker-{queue}", f"other-{queue}"
    for _ in range(3):
        await pushed(client, queue)
    [active] = await fetched(client, queue, worker_id=worker)

    async def beaten(name: str) -> Any:  # noqa: ANN401 - JSON
        status, answer = await told(client, "heartbeat", worker_id=name, active_jobs=[active["id"]])
        assert status == 200
        return answer

    assert (await beaten(worker))["state"] == "running"
    id_ = ""
    async with asyncio.timeout(60):  # the matcher writes what the list shows
        while not id_:
            items = (await client.get(f"{ADMIN}/workers", params={"per_page": 100})).json()["items"]
            id_ = next((item["id"] for item in items if item["name"] == worker), "")
            await asyncio.sleep(0.1)
    assert (await client.post(f"{ADMIN}/workers/{id_}/quiet")).json() == {"id": id_, "state": "quiet", "changed": True}
    answer = await beaten(worker)
    assert (answer["state"], answer["jobs_extended"]) == ("quiet", [active["id"]])
    assert (await beaten(other))["state"] == "running"
    async with asyncio.timeout(60):  # until the matcher knows of it
        while True:
            if (await client.get(f"{ADMIN}/workers/{id_}")).json()["state"] == "quiet":
                break
            await asyncio.sleep(0.1)
    assert await fetched(client, queue, worker_id=worker, wait_ms=300) == []
    assert len(await fetched(client, queue, worker_id=other)) == 1
    drained = (await client.post(f"/v1/agents/{id_}/drain")).json()
    assert [agent["agent_id"] for agent in drained["agents"]] == [id_]
    assert (await beaten(worker))["state"] == "terminate"
    assert await fetched(client, queue, worker_id=worker, wait_ms=300) == []
    assert (await told(client, "ack", job_id=active["id"], worker_id=worker))[0] == 200
    assert (await client.post(f"/v1/agents/{worker}/enable")).json()["changed"] is True
    assert len(await fetched(client, queue, worker_id=worker)) == 1
