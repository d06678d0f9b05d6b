"""Unique jobs at the gateway: answers, permissions and batches."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.cli.test_acceptance import program
from tests.ojs.served import Server, await_authentication, server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("guarded"), with_token=True) as it:
        yield it


def job(on_conflict: str, **unique: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "type": "mail.send",
        "args": [{"user": 42}],
        "options": {"unique": {"keys": ["args"], "on_conflict": on_conflict, **unique}},
    }


async def push(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = await client.post("/ojs/v1/jobs", json=body)
    return answer.status_code, answer.json()


def fresh(body: dict[str, Any]) -> dict[str, Any]:
    """Return the job under a type of its own."""
    return {**body, "type": f"t{uuid4().hex}"}


async def test_duplicate_is_answered_with_the_existing_job(client: httpx.AsyncClient) -> None:
    body = fresh(job("reject"))
    status, created = await push(client, body)
    assert status == 201
    status, refused = await push(client, body)
    assert (status, refused["error"]["code"], refused["error"]["retryable"]) == (409, "duplicate", False)
    existing = {"existing_job_id": created["job"]["id"], "existing_job_state": "available"}
    assert refused["error"]["details"] == existing
    status, ignored = await push(client, {**body, "options": job("ignore")["options"]})
    assert (status, ignored["deduplicated"], ignored["job"]) == (200, True, created["job"])


async def test_job_of_the_refused_id_does_not_exist(client: httpx.AsyncClient) -> None:
    body = fresh(job("reject"))
    await push(client, body)
    id_ = "01932e34-7c8a-7d4a-9f3b-1a2b3c4d5e70"
    assert (await push(client, {**body, "id": id_}))[0] == 409
    assert (await client.get(f"/ojs/v1/jobs/{id_}")).status_code == 404


async def test_batch_takes_no_job_that_may_be_refused(client: httpx.AsyncClient) -> None:
    first, second = fresh(job("ignore")), fresh(job("reject"))
    answer = await client.post("/ojs/v1/jobs/batch", json={"jobs": [first, second]})
    assert (answer.status_code, answer.json()["error"]["details"]["errors"][0]["field"]) == (
        400,
        "jobs[1].unique.on_conflict",
    )
    answer = await client.post("/ojs/v1/jobs/batch", json={"jobs": [first, first]})
    assert answer.status_code == 201
    [one, other] = answer.json()["jobs"]
    assert one["id"] == other["id"]


async def test_replacement_needs_the_permission_to_cancel(guarded: Server, tmp_path: Path) -> None:
    told = program(
        *("tokens", "create", "author", "--role", "scheduler-author", "-o", "json", "--nats", guarded.nats_url),
        cwd=tmp_path,
    )
    assert told.returncode == 0, told.stderr
    await_authentication(guarded.url)
    author = Server(guarded.url, guarded.nats_url, json.loads(told.stdout)["token"])
    async with author.client() as client:
        body = fresh(job("ignore"))
        assert (await push(client, body))[0] == 201
        status, refused = await push(client, {**body, "options": job("replace")["options"]})
        assert (status, refused["error"]["code"]) == (403, "forbidden")
