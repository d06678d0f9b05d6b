"""An installation whose NATS is lost, and another NATS in which its backup is restored."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.stored_events import StoredEvents
from tests.system.processes import environment_of, run_command
from tests.system.running import Running, deciding
from tocsin import Worker, bootstrap
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.bootstrap import Installation
from tocsin.cli.runtime.backend import Backend
from tocsin.settings import Settings

DECISIONS = "tocsin_COMMITS"
"""A stream that an installation cannot lose."""
AUDITS = 10
"""Audits until the history must say what the log says."""
SETTINGS: Mapping[str, Any] = {
    "leader": {"ttl": 2, "renew_interval": 0.5},
    "server": {"port": 0},
    "nats": {"url": "nats://127.0.0.1:1"},
}


def settings(folder: Path, **more: object) -> Settings:
    """Settings of an installation that has NATS for itself."""
    return Settings.model_validate({"data_dir": folder, **SETTINGS, **more})


def at(chosen: Settings, url: str, **more: object) -> Settings:
    """The same settings on another NATS."""
    return chosen.model_copy(update={"nats": chosen.nats.model_copy(update={"url": url}), **more})


@asynccontextmanager
async def empty_nats(chosen: Settings) -> AsyncIterator[Settings]:
    """Settings on a new server, whose storage is deleted at the end."""
    async with EmbeddedServer(None, ANY_PORT).running() as server:
        yield at(chosen, server.url)


@asynccontextmanager
async def new_installation(chosen: Settings) -> AsyncIterator[Installation]:
    """An initialized installation on a new server, without stages."""
    async with empty_nats(chosen) as there, bootstrap.connect(there) as installation:
        await bootstrap.initialize(installation)
        async with deciding(installation) as storing:
            yield storing


@asynccontextmanager
async def at_work(installation: Installation, worker: Worker) -> AsyncIterator[Running]:
    """Run all stages and a worker, each with its own connection as their processes have."""
    ready = asyncio.Event()
    async with (
        bootstrap.connect(installation.settings) as of_stages,
        bootstrap.connect(installation.settings) as of_worker,
    ):
        stages = asyncio.create_task(bootstrap.run_stages(of_stages, list(bootstrap.STAGE_NAMES), ready=ready))
        working = asyncio.create_task(Backend().run_worker(of_worker, worker))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([waiting, stages], return_when=asyncio.FIRST_COMPLETED)
        try:
            if stages.done():
                await stages
            yield Running(installation)
        finally:
            for task in (waiting, stages, working):
                task.cancel()
            await asyncio.gather(waiting, stages, working, return_exceptions=True)


async def restored(installation: Installation, backup: Path) -> int:
    """Restore a backup as the command line does; return the number of executions in the history."""
    await bootstrap.restore_backup(installation, backup)
    return await bootstrap.rebuild_history(installation)


async def everything(installation: Installation) -> StoredEvents:
    """Return all that was ever stored, archived or not."""
    return await StoredEvents.decodable(installation.stored)


async def audited(installation: Installation, *options: str) -> dict[str, Any]:
    """Audit the log as `tocsin audit --history` does.

    The history and the displays of locks may be some seconds late.
    """
    code, report = 1, dict[str, Any]()
    for _ in range(AUDITS):
        code, report = await called(installation.settings, "audit", "--history", *options)
        if code != 1 or any(found["invariant"] != "I8" for found in report["violations"]):
            break
    assert code in {0, 1}, report
    found: dict[str, Any] = report
    return found


async def called(chosen: Settings, *arguments: str) -> tuple[int, Any]:
    """Call `tocsin`, and return the exit code and what it says in JSON."""
    ended = await run_command([*arguments, "-o", "json"], environment_of(chosen))
    return ended.returncode, json.loads(ended.stdout or ended.stderr)
