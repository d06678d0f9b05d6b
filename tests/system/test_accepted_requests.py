"""The execution of an accepted request, before and after a stage decides on the request."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.cli.test_acceptance import environment
from tests.domain.given import NOON
from tests.plain_http import NO_AUTHORITIES
from tests.system.running import DEADLINE, Running, deciding, settings
from tocsin import Client, bootstrap, subjects
from tocsin.bootstrap.api_server import serving
from tocsin.domain.events import DeadLettered, Failure
from tocsin.services.operations.backfill import Span
from tocsin.services.operations.event_waiter import until

JOBS: tuple[dict[str, Any], ...] = (
    {"name": "free", "function": "f", "input": {"day": "monday"}, "overlap_policy": "allow"},
    {"name": "locked", "function": "f", "schedule": "0 3 * * *", "input": {"day": "monday"}},
)


@dataclass
class Site:
    """An installation with its API, and without a stage."""

    running: Running
    url: str
    environment: dict[str, str]

    async def api(self, method: str, path: str, body: object = None, *, key: str | None = None) -> httpx.Response:
        """Send a request to the API. `key`: its idempotency key."""
        headers = {} if key is None else {"Idempotency-Key": key}
        async with httpx.AsyncClient(base_url=self.url, timeout=DEADLINE, verify=NO_AUTHORITIES) as http:
            return await http.request(method, path, json=body, headers=headers)

    async def command(self, *words: str, server: bool = False) -> Any:  # noqa: ANN401 - JSON
        """Return the answer of a command, over NATS or over HTTP."""
        words = ("--server", self.url, *words) if server else words
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tocsin", *words, "-o", "json"), env=self.environment, stdout=subprocess.PIPE
        )
        answer, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(answer)


@pytest.fixture
async def site(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    chosen = settings(nats_url, tmp_path, server={"port": 0}, metrics={"enabled": False})
    names = chosen.model_dump(include={"root", "public_prefix", "trigger_prefix", "mq_prefix"})
    variables = {f"TOCSIN_{name.upper()}": value for name, value in names.items()}
    variables |= {"TOCSIN_NATS__URL": nats_url, "TOCSIN_DATA_DIR": str(tmp_path)}
    async with bootstrap.connect(chosen) as connected, deciding(connected) as installation:
        await bootstrap.initialize(installation)
        async with serving(installation) as url:
            running = Running(installation)
            await running.apply(*JOBS)
            yield Site(running, url, environment(**variables))


async def dead_letter(site: Site, job: str) -> str:
    """A dead letter of a job, of an execution that the log holds no more."""
    defined = await site.running.log.last(subjects.definition(job))
    assert defined is not None
    letter_id = str(uuid4())
    letter = DeadLettered(
        job=job,
        id=letter_id,
        execution_id=letter_id,
        scheduled_time=NOON,
        trigger="manual",
        definition=defined.sequence,
        input={"day": "monday"},
        attempts=(),
        last_error=Failure(type="ValueError", message="no"),
        first_attempt=NOON,
        last_attempt=NOON,
    )
    await site.running.log.append(letter, expect=0)
    return letter_id


async def by_trigger(site: Site, job: str) -> str:
    return str((await site.api("POST", f"/v1/jobs/{job}/trigger")).json()["execution_id"])


async def by_idempotency_key(site: Site, job: str) -> str:
    body = {"idempotency_key": f"{job}-1"}
    return str((await site.api("POST", f"/v1/jobs/{job}/trigger", body)).json()["execution_id"])


async def by_request_with_key(site: Site, job: str) -> str:
    return str((await site.api("POST", f"/v1/jobs/{job}/trigger", key="request-1")).json()["execution_id"])


async def by_command(site: Site, job: str) -> str:
    return str((await site.command("jobs", "trigger", job))["execution_id"])


async def by_client(site: Site, job: str) -> str:
    async with Client(settings=site.running.settings) as client:
        return (await client.trigger(job)).execution_id


async def by_statement(site: Site, job: str) -> str:
    [answer] = (await site.api("POST", "/v1/sql", {"sql": f"EXECUTE JOB {job}"})).json()["results"]
    return str(answer["execution_id"])


async def by_replay(site: Site, job: str) -> str:
    letter = await dead_letter(site, job)
    return str((await site.api("POST", f"/v1/dead-letters/{letter}/replay", {})).json()["execution_id"])


async def by_backfill(site: Site, job: str) -> str:
    del job  # the other has no schedule
    async with Client(settings=site.running.settings) as client:
        span = Span(NOON - timedelta(days=1), NOON)
        plan = await client.operator.plan_backfill("locked", span, now=NOON)
        [asked] = [asked async for asked in client.operator.backfill(plan, rate=10)]
    return asked.execution_id


async def by_enqueueing(site: Site, job: str) -> str:
    del job  # it is not registered
    answer = await site.api("POST", "/ojs/v1/jobs", {"type": "f", "args": []})
    return str(answer.json()["job"]["id"])


WAYS = (
    *(by_trigger, by_idempotency_key, by_request_with_key, by_command, by_client, by_statement),
    *(by_replay, by_backfill, by_enqueueing),
)


@pytest.mark.parametrize("request_of", WAYS)
async def test_requested_execution_is_pending_for_every_reader(
    site: Site, request_of: Callable[[Site, str], Awaitable[str]]
) -> None:
    execution = await request_of(site, "locked")
    shown = (await site.api("GET", f"/v1/executions/{execution}")).json()
    assert (shown.get("execution_id"), shown.get("status"), shown.get("waits_for")) == (execution, "pending", None)
    events = (await site.api("GET", f"/v1/executions/{execution}/events")).json()
    assert (events["job_name"], events["facts"], events["expected"]["sequence"]) == (shown["job_name"], [], 0)
    logs = (await site.api("GET", f"/v1/executions/{execution}/logs")).json()
    assert (logs["lines"], logs["is_over"]) == ([], False)
    ojs = (await site.api("GET", f"/ojs/v1/jobs/{execution}")).json()["job"]
    assert (ojs["id"], ojs["state"]) == (execution, "available")
    for client in (Client(settings=site.running.settings), Client(url=site.url)):
        async with client:
            assert await (await client.run(execution)).status() == "pending"


@pytest.mark.parametrize("server", [False, True])
async def test_command_shows_a_requested_execution(site: Site, *, server: bool) -> None:
    execution = await by_trigger(site, "free")
    page = await site.command("executions", "show", execution, server=server)
    assert (page["status"], page["job"], page["facts"]) == ("pending", "free", [])


@pytest.mark.parametrize("request_of", WAYS)
async def test_planned_execution_has_the_id_of_its_request(
    site: Site, request_of: Callable[[Site, str], Awaitable[str]]
) -> None:
    execution = await request_of(site, "locked")
    before = (await site.api("GET", f"/v1/executions/{execution}")).json()
    planner = asyncio.create_task(bootstrap.run_stages(site.running.installation, ["planner"]))
    assert await until(site.running.log, subjects.execution(subjects.ANY, execution), bool)
    after = (await site.api("GET", f"/v1/executions/{execution}")).json()
    planner.cancel()
    await asyncio.gather(planner, return_exceptions=True)
    stable = ("execution_id", "job_name", "status", "trigger", "scheduled_time", "input", "definition", "by")
    assert {name: before[name] for name in stable} == {name: after[name] for name in stable}
