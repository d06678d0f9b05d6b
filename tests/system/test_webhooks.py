"""Requests to webhooks: each that was accepted starts one execution, also through kills."""

import hmac
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.processes import site
from tests.system.running import DEADLINE, Running, running
from tocsin import Context, Worker
from tocsin.bootstrap.api_server import serving
from tocsin.domain.events import Admitted, Completed

SECRET = "a-secret-of-32-bytes-for-testing"  # noqa: S105 - of tests
OPENED = {"webhooks": {"GITHUB_SECRET": ["/hooks/*"]}}
JOB = {
    "name": "build",
    "function": "echo",
    "overlap_policy": "allow",
    "triggers": [{"webhook": "/hooks/github", "input": {"ref": "body.ref", "event": 'headers["x-github-event"]'}}],
}


async def push(client: httpx.AsyncClient, delivery: str, ref: str = "main") -> int:
    """Send what GitHub sends; return the status."""
    body = json.dumps({"ref": ref}).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": f"sha256={hmac.digest(SECRET.encode(), body, 'sha256').hex()}",
    }
    return (await client.post("/hooks/github", content=body, headers=headers)).status_code


async def is_empty(tocsin: Running) -> bool:
    """Whether the event listener has handled every request."""
    state = await tocsin.installation.connection.manage(f"STREAM.INFO.{tocsin.installation.names.webhook_stream}")
    return bool(state["state"]["messages"] == 0)


@asynccontextmanager
async def api_of(tocsin: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(tocsin.installation, any_port=("server.port",)) as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
    ):
        yield client


async def test_delivery_starts_one_execution(nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SECRET", SECRET)
    worker = Worker()

    @worker.task("echo")
    async def echo(context: Context) -> object:
        return dict(context.input)

    more: dict[str, Any] = {"metrics": {"enabled": False}, "queues": {"default": {"transport": "matched"}}}
    async with running(nats_url, tmp_path, worker=worker, triggers=OPENED, **more) as tocsin, api_of(tocsin) as client:
        await tocsin.apply(JOB)
        assert [await push(client, delivery) for delivery in ("d1", "d1", "d2")] == [202] * 3
        await tocsin.until(partial(is_empty, tocsin))
        ends = await tocsin.ended("build", Completed, 2)
        assert [end.result for end in ends] == [{"ref": "main", "event": "push"}] * 2
        assert len(await tocsin.of_executions("build", Admitted)) == 2


@pytest.mark.slow
async def test_accepted_request_survives_kills(nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for the first event listener too, and deliveries are sent again."""
    monkeypatch.setenv("GITHUB_SECRET", SECRET)
    async with (
        site(nats_url, tmp_path, triggers=OPENED, metrics={"enabled": False}, server={"rate": None}) as tocsin,
        api_of(tocsin) as client,
    ):
        await tocsin.apply(JOB)
        accepted = {f"a{n}" for n in range(20)}
        assert {await push(client, delivery) for delivery in accepted} == {202}
        listener = tocsin.start("event_listener")
        tocsin.start("planner")
        await tocsin.ready()
        for number in range(3):
            later = {f"{number}-{n}" for n in range(40)}
            assert {await push(client, delivery) for delivery in later} == {202}
            listener.send(signal.SIGKILL)
            listener.process.join()
            assert {await push(client, delivery) for delivery in later} == {202}
            accepted |= later
            listener.start()
        await tocsin.ready()
        await tocsin.until(partial(is_empty, tocsin))
        admitted = await tocsin.ended("build", Admitted, len(accepted))
        assert len({each.execution_id for each in admitted}) == len(admitted) == len(accepted)
