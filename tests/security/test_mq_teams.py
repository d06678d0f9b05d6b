"""MQ executors of a namespace with an account of its own: no other takes its tasks, or answers for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from nats.aio.client import Client
from pydantic import ValidationError

from tests.security import installations
from tests.security.installations import PASSWORD, connected, rules
from tests.security.server import Server
from tests.security.test_outside_requests import deciding
from tests.system.running import DEADLINE, Running
from tocsin.adapters.nats.admin.permissions import Permissions
from tocsin.bootstrap.nats_roles import MQ_EXECUTOR
from tocsin.bootstrap.provision import health_target
from tocsin.domain.events import Completed, Envelope, PoisonMessage
from tocsin.services.jobs import Registry
from tocsin.services.queues import queues
from tocsin.settings import Settings

TEAMS: Final = {"payments": {"executors": True}, "billing": {"executors": True}}
DURABLES: Final = {
    "payments.nightly": "job-executors-payments",
    "billing": "job-executors-billing",
    "nightly": "job-executors",
}
"""The durable of each job's tasks."""
USERS: Final = {job: durable.replace("job-executors", MQ_EXECUTOR) for job, durable in DURABLES.items()}


def unruled(folder: Path, *, screened: bool = False) -> dict[str, Permissions]:
    """Return the rules of every user; those of the executors allow everything, so that their accounts alone protect."""
    return {
        name: replace(user, publish=(">",), deny_publish=(), subscribe=(">",)) if name in USERS.values() else user
        for name, user in rules(folder, screened=screened).items()
    }


@pytest.fixture(params=["users", "accounts alone", "screened"])
def secured(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(installations, "NAMESPACES", TEAMS)
    if request.param == "accounts alone":
        monkeypatch.setattr(installations, "rules", unruled)
    with installations.installed(tmp_path, screened=request.param == "screened") as running:
        yield running


@asynccontextmanager
async def executor(at: Server, job: str) -> AsyncIterator[Client]:
    """Connect as an executor of a job's tasks, as a client that knows NATS alone."""

    async def note(_: Exception) -> None: ...

    name = USERS[job]
    client = await nats.connect(
        at.url, user=name, password=PASSWORD, inbox_prefix=f"_INBOX_{name}", error_cb=note, allow_reconnect=False
    )
    try:
        yield client
    finally:
        await client.close()


async def take(client: Client, durable: str) -> dict[str, Any]:
    """Take the next task of a durable."""
    tasks = await client.jetstream().pull_subscribe_bind(durable, "TOCSIN_MQ")
    [message] = await tasks.fetch(1, timeout=DEADLINE)
    await message.ack()
    data: dict[str, Any] = json.loads(message.data)["data"]
    return data


async def answer(client: Client, tail: str, **body: object) -> bool:
    """Publish a completion; return whether the server stored it."""
    try:
        reply = await client.request(f"mq.scheduler.complete.{tail}", json.dumps(body).encode(), timeout=1)
    except nats.errors.Error:
        return False
    return "seq" in json.loads(reply.data)


async def answered(client: Client, tail: str, **body: object) -> None:
    """Publish a completion until the server stored it: a screener may start later."""
    async with asyncio.timeout(DEADLINE):
        while True:
            if await answer(client, tail, **body):
                return
            await asyncio.sleep(0.05)


async def test_tasks_of_a_team_are_its_own(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, deciding(secured, tmp_path):
        tocsin = Running(it)
        for job in DURABLES:
            await tocsin.apply({"name": job, "function": "f", "queue": "outside", "retry": {"max_attempts": 1}})
            await tocsin.trigger(job)
        for subject in ("mq.team.payments.nightly", "mq.team.billing", "mq.scheduled.nightly"):
            await tocsin.stored(subject, Envelope, 1)
        jobs = Registry(it.log, it.projections, it.clock).jobs
        [queue] = [queue for queue in await queues(health_target(it), jobs) if queue.name == "outside"]
        assert queue.handed_over == len(DURABLES)
        ids = {}
        for job, durable in DURABLES.items():
            async with executor(secured, job) as client:
                for other in set(DURABLES.values()) - {durable}:
                    with pytest.raises(nats.errors.Error):
                        await client.request(f"$JS.API.CONSUMER.MSG.NEXT.TOCSIN_MQ.{other}", b"1", timeout=1)
                task = await take(client, durable)
                assert task["job_name"] == job
                ids[job] = task["execution_id"]
        for job, victim in permutations(DURABLES, 2):
            forged = {"job_name": victim, "execution_id": ids[victim], "status": "completed", "result": "forged"}
            async with executor(secured, job) as client:
                assert not await answer(client, f"{victim}.{ids[victim]}", **forged)
                own = f"{job.partition('.')[0]}.{ids[victim]}" if job != "nightly" else ids[victim]
                await answered(client, own, **forged)  # under a subject of its own
        refused = await tocsin.stored("dead-letter.>", PoisonMessage, 6)
        assert {recorded.message.code for recorded in refused} == {"mq-answer-contradictory", "mq-answer-misaddressed"}
        for job, execution_id in ids.items():
            async with executor(secured, job) as client:
                await answered(client, f"{job}.{execution_id}", status="completed", result=job)
            [completed] = await tocsin.ended(job, Completed)
            assert completed.result == job


def test_executors_of_a_namespace_need_an_mq_queue() -> None:
    with pytest.raises(ValidationError, match=r"namespaces\.payments\.executors"):
        Settings.model_validate({"namespaces": TEAMS})
