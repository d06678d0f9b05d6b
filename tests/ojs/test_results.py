"""The results of jobs and what is known of them (ojs-results), and fields that only the server sets."""

from typing import Any, Final

import httpx
import pytest

from tests.ojs.test_gateway import fetched, fresh, pushed, told

METADATA: Final = ("result_stored_at", "result_expires_at", "result_size_bytes")
RESULTS: Final[list[tuple[Any, int]]] = [
    (None, 4),
    (True, 4),
    (42, 2),
    ("é", 4),
    ([1, "a"], 7),
    ({"a": 1, "b": ["c"]}, 17),
    ({"a": None, "b": [-0.0, 1e22, 0.1, 2**63, 1.0]}, 55),
]
"""Results, and their sizes as UTF-8 without white space."""


async def job_of(client: httpx.AsyncClient, id_: str) -> dict[str, Any]:
    """Return a job as its client sees it."""
    answer = await client.get(f"/ojs/v1/jobs/{id_}")
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()["job"]
    return job


@pytest.mark.parametrize(("result", "size"), RESULTS)
async def test_result_has_its_time_and_size(result: Any, size: int, client: httpx.AsyncClient) -> None:  # noqa: ANN401
    queue = fresh()
    id_ = (await pushed(client, queue))["id"]
    [held] = await fetched(client, queue)
    assert [name for name in METADATA if name in held] == []
    assert (await told(client, "ack", job_id=id_, result=result))[0] == 200
    job = await job_of(client, id_)
    assert job["result"] == result
    assert tuple(job[name] for name in METADATA) == (job["completed_at"], None, size)


async def test_error_has_its_time(client: httpx.AsyncClient) -> None:
    queue = fresh()
    retry = {"max_attempts": 2, "initial_interval_ms": 1}
    id_ = (await pushed(client, queue, options={"retry": retry}))["id"]
    for state in ("retryable", "discarded"):
        await fetched(client, queue)
        shown = (await told(client, "nack", job_id=id_, error={"code": "busy", "message": "later"}))[1]
        assert shown["state"] == state
        if state == "retryable":
            assert [name for name in METADATA if name in await job_of(client, id_)] == []
    job = await job_of(client, id_)
    assert (job["result_stored_at"], job["result_expires_at"]) == (job["discarded_at"], None)
    assert "result_size_bytes" not in job


async def test_jobs_of_a_workflow_have_the_metadata(client: httpx.AsyncClient) -> None:
    queue = fresh()
    step = {"type": "mail.send", "args": [], "options": {"queue": queue}}
    created = await client.post("/ojs/v1/workflows", json={"type": "chain", "steps": [step, step]})
    [first] = await fetched(client, queue)
    await told(client, "ack", job_id=first["id"], result=[1])
    job = await job_of(client, first["id"])
    assert tuple(job[name] for name in METADATA) == (job["completed_at"], None, 3)
    assert [name for name in METADATA if name in await job_of(client, f"{created.json()['workflow']['id']}:1")] == []


FORGED: Final[dict[str, Any]] = {
    **dict.fromkeys(METADATA, "2026-01-01T00:00:00Z"),
    "workflow_id": "w",
    "worker_id": "w",
    "previous_state": "w",
    "fence": 10**9,
    "bind": {"a": 1},
    "parent_results": [1],
    "parent_results_left_out": [1],
    "last_checkpoint": 1,
    "input": {"a": 1},
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


async def test_client_cannot_pass_for_the_server(client: httpx.AsyncClient) -> None:
    queue = fresh()
    id_ = (await pushed(client, queue, **FORGED, tenant="acme"))["id"]
    waiting = await job_of(client, id_)
    [held] = await fetched(client, queue)
    for job in (waiting, held):
        assert job["tenant"] == "acme"  # other fields are kept
        assert {name: value for name, value in FORGED.items() if job.get(name) == value} == {}


async def test_forged_workflow_does_not_prevent_cancelling(client: httpx.AsyncClient) -> None:
    id_ = (await pushed(client, fresh(), workflow_id="w"))["id"]
    answer = await client.delete(f"/ojs/v1/jobs/{id_}")
    assert (answer.status_code, answer.json()["job"]["state"]) == (200, "cancelled")
