"""Workflows of the Open Job Spec: the stages that advance them die right after they store an event."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest

from tests.ports import free_port
from tests.system.processes import Site
from tests.system.test_unique_keys import LEASE, MORTAL, death_of
from tocsin import bootstrap
from tocsin.domain.events import Cancelled, Completed, Dispatched, Exhausted, Released

JOB: Final = "ojs-workflow"
CALLBACKS: Final = ("on_complete", "on_success", "on_failure")


@pytest.fixture
def tocsin(ojs_site: Site) -> Site:
    return ojs_site


def job(name: str) -> dict[str, Any]:
    return {"type": f"t.{name}", "args": [], "options": {"queue": "work"}}


BATCH: Final = {
    "type": "batch",
    "jobs": [{"type": "chain", "steps": [job("a"), job("b")]}, job("bad"), job("c")],
    "callbacks": {kind: job(kind.replace("_", "-")) for kind in CALLBACKS},
}
"""Its job `bad` fails."""


async def work(client: httpx.AsyncClient) -> None:
    """Take jobs until cancelled; a report waits for its stage, and may be sent again."""
    while True:
        fetch = {"queues": ["work"], "count": 4, "wait_ms": 200, "visibility_timeout_ms": LEASE}
        answer = await client.post("/ojs/v1/workers/fetch", json=fetch)
        for task in answer.json().get("jobs", []):
            verb, more = "ack", {"result": {"by": task["type"]}}
            if task["type"] == "t.bad":
                verb, more = "nack", {"error": {"code": "bad", "message": "bad", "retryable": False}}
            await client.post(f"/ojs/v1/workers/{verb}", json={"job_id": task["id"], **more})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "dies_of"),
    [
        ("dag_advancer", "advanced"),
        ("dag_advancer", "completed"),
        ("retrier", "exhausted"),
        pytest.param("dag_advancer", "dispatched", marks=pytest.mark.full),
    ],
)
async def test_killed_stage_fires_each_callback_once(tocsin: Site, stage: str, dies_of: str) -> None:
    tocsin.start(*(name for name in bootstrap.STAGE_NAMES if name != stage))
    mortal = tocsin.start(stage, module=(MORTAL, dies_of))
    port = free_port()
    tocsin.start_gateway(port)
    await tocsin.ready()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        creating = asyncio.create_task(client.post("/ojs/v1/workflows", json=BATCH))
        working = asyncio.create_task(work(client))
        await death_of(tocsin, mortal)
        tocsin.start(stage)
        await tocsin.ready()
        answer = await creating
        assert answer.status_code == httpx.codes.CREATED, answer.text
        id_ = answer.json()["workflow"]["id"]

        async def ended() -> dict[str, Any] | None:
            shown: dict[str, Any] = (await client.get(f"/ojs/v1/workflows/{id_}")).json()["workflow"]
            return shown if shown["state"] not in {"pending", "running"} else None

        shown = await tocsin.until(ended)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    assert shown is not None
    assert (shown["state"], shown["jobs_completed"], shown["metadata"]["failed_count"]) == ("completed", 2, 1)
    assert {kind: step["state"] for kind, step in shown["callbacks"].items()} == {
        "on_complete": "completed",
        "on_success": "cancelled",
        "on_failure": "completed",
    }
    tasks = Counter(task.step for task in await tocsin.of_executions(JOB, Dispatched))
    tasks -= Counter(claim.step for claim in await tocsin.of_executions(JOB, Released))  # its lease ended meanwhile
    assert tasks == dict.fromkeys(("0-0", "0-1", "1", "2", "on_complete", "on_failure"), 1)
    assert len(await tocsin.of_executions(JOB, Exhausted)) == len(await tocsin.of_executions(JOB, Completed)) == 1
    assert await tocsin.of_executions(JOB, Cancelled) == []
    await tocsin.checked()
