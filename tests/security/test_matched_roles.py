"""An installation whose queues are all matched: workers store nothing in the log."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.security import test_roles
from tests.security.server import Server, server
from tests.security.test_roles import ACCOUNT, PASSWORD, _initialize, connected, everybody
from tocsin import Context, Worker
from tocsin.adapters.nats.admin.permissions import password_variable, server_config
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.events import Completed, Started
from tocsin.ports import NotAllowed
from tocsin.services.jobs import Registry
from tocsin.settings import Settings

MATCHED: Final = {"default": {"transport": "matched"}, "outside": {"transport": "mq"}}


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(test_roles, "QUEUES", MATCHED)
    roles = permissions(Settings.model_validate({"data_dir": tmp_path, "queues": MATCHED}))
    environment = {password_variable(ACCOUNT, role): PASSWORD for role in roles}
    with server(tmp_path / "server", server_config(ACCOUNT, roles), environment=environment) as running:
        asyncio.run(_initialize(running.url, tmp_path))
        yield running


async def test_worker_needs_no_right_to_the_log(secured: Server, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("works")
    async def works(context: Context) -> None:
        await context.progress(0.5)
        context.logger.info("working")

    before = len(secured.log)
    async with everybody(secured, tmp_path, worker) as tocsin:
        registry = Registry(tocsin.log, tocsin.installation.projections, tocsin.installation.clock)
        await tocsin.apply({"name": "job", "function": "works", "overlap_policy": "allow"})
        await registry.trigger("job")
        await registry.trigger("job")
        await tocsin.ended("job", Completed, 2)
        assert len(await tocsin.facts("execution.job.*.started.>", Started)) == 2
    assert "Violation" not in secured.log[before:]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Nats-Expected-Last-Subject-Sequence": "0"},
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tocsin.0.execution.j.0198.completed"},
    ],
    ids=["plain", "guarded", "rollup of all", "rollup of a subject", "lifetime", "schedule"],
)
@pytest.mark.parametrize(
    "subject",
    [
        "execution.j.0198.started.main.1.1",
        "execution.j.0198.completed",
        "lock.j.acquired",
        "timer.j.0198.lease.main.1.1",
        "delay.j.0198.retry.main.1",
    ],
)
async def test_worker_stores_nothing_in_the_log(
    subject: str, headers: dict[str, str], secured: Server, tmp_path: Path
) -> None:
    async with connected(secured, tmp_path, "worker") as installation:
        with pytest.raises(NotAllowed):
            await installation.connection.store(installation.names.to_wire(subject), b"{}", headers)
