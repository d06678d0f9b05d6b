"""A nats-server whose disk is full: how it shows, and what happens when there is room again."""

import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.security.server import Server, server
from tests.stored_events import StoredEvents
from tests.system.running import DEADLINE, Running, settings
from tocsin import Worker, bootstrap
from tocsin.bootstrap import Installation, health_target
from tocsin.cli.installation.status import shown
from tocsin.domain.events import Completed, Due
from tocsin.ports import LogUnavailable
from tocsin.services.health import Finding, Level, examine
from tocsin.services.health.status import status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the files of another process")

STAGES: Final = ("registrar", "ticker", "planner", "dag_advancer", "matcher", "agent_keeper", "lock_keeper")
CONFIG: Final = 'http: "127.0.0.1:-1"\n'
LEADER: Final = {"ttl": 30, "renew_interval": 2}
"""The lease is late for 15 seconds before it ends, so that a busy machine looks in time."""
PATIENCE: Final = timedelta(seconds=10)
"""For instants that came due while the stages stopped."""
JOB: Final = {"name": "tick", "function": "work", "schedule": "@every 1s", "overlap_policy": "allow", "catch_up": "all"}


def pid(of: Server) -> int:
    [ports] = of.folder.glob("nats-server_*.ports")
    return int(ports.stem.partition("_")[2])


def monitor(of: Server) -> str:
    [ports] = of.folder.glob("nats-server_*.ports")
    address: str = json.loads(ports.read_text())["monitoring"][0]
    return address


def fill(of: Server) -> None:
    """Refuse each further byte in a file, as a full disk does."""
    resource.prlimit(pid(of), resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def free(of: Server) -> None:
    resource.prlimit(pid(of), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@asynccontextmanager
async def at_work(installation: Installation) -> AsyncIterator[Running]:
    """Run stages and a worker, and a job that fires each second."""
    worker = Worker(name="w")
    worker.task("work")(lambda _: None)
    stages = asyncio.create_task(bootstrap.run_stages(installation, STAGES))
    async with bootstrap.worker_connection(installation, worker.options) as connection:
        serving = asyncio.create_task(worker.serve(connection))
        try:
            running = Running(installation)
            await running.apply(JOB)
            await running.ended("tick", Completed, 2)
            yield running
        finally:
            worker.stop()
            worker.stop()
            stages.cancel()
            await asyncio.gather(stages, serving, return_exceptions=True)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(2 * DEADLINE):
        while not await look():  # noqa: ASYNC110 - findings wake nothing
            await asyncio.sleep(0.5)


async def test_full_disk_is_found_and_survived(tmp_path: Path) -> None:
    """The processes go on after a restart of the server, with every instant decided."""
    folder = tmp_path / "server"
    findings: dict[str, Finding] = {}
    with ExitStack() as servers:
        first = servers.enter_context(server(folder, CONFIG))
        async with bootstrap.connect(settings(first.url, tmp_path, leader=LEADER)) as installation:
            await bootstrap.initialize(installation)
            target = health_target(installation)

            async def finds(code: str, *monitors: str) -> bool:
                findings.clear()
                findings.update({found.code: found for found in await examine(target, monitors)})
                return code in findings

            async with at_work(installation) as running:
                assert not await finds("store-failed", monitor(first))
                assert "lease-not-renewed" not in findings
                fill(first)
                await until(lambda: finds("lease-not-renewed"))
                assert any("did not renew the lease" in str(line) for line in shown(await status(target)))
                free(first)
                assert await finds("store-failed", monitor(first))
                assert findings["store-failed"].level is Level.BAD
                assert "restart this nats-server" in findings["store-failed"].do

                servers.close()
                next(folder.glob("*.ports")).unlink()
                second = servers.enter_context(server(folder, CONFIG, port=first.port))
                done: list[int] = []

                async def goes_on() -> bool:
                    with suppress(LogUnavailable):  # connecting again
                        done.append(len(await running.of_executions("tick", Completed)))
                    return bool(done) and done[-1] >= done[0] + 2

                await until(goes_on)
                assert not await finds("store-failed", monitor(second))
                events = await StoredEvents.of(installation.log)
            decided = [fact.message.scheduled_time for fact in events.facts(Due)]
            assert len(decided) == len(set(decided))
            assert not [found for found in events.audited(patience=PATIENCE).violations if found.invariant == "I2"]
