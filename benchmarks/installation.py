"""A whole Tocsin on a throw-away server, for benchmarks: every stage, the history and a worker in one process."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.server import ANY_PORT, EmbeddedServer
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.settings import Settings

FUNCTION = "benchmark/no-op"


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload works on. `started` holds the times (`time.perf_counter`, seconds) at which handlers began."""

    installation: Installation
    started: list[float]

    async def define(self, *definitions: JobDefinition) -> None:
        """Register jobs that are not there yet."""
        for definition in definitions:
            for fact in ledger.define(ledger.initial, definition):
                await self.installation.log.append(fact, expect=0)


@asynccontextmanager
async def bench(*, concurrency: int = 256, sync_always: bool = False) -> AsyncIterator[Bench]:
    """Start everything; stop it behind the block."""
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(port=ANY_PORT, sync_always=sync_always).running() as server:
            settings = Settings.model_validate({"nats": {"url": server.url}, "data_dir": Path(folder)})
            async with bootstrap.connect(settings) as installation:
                await bootstrap.initialize(installation)
                worker, started = Worker(concurrency=concurrency), list[float]()
                clock = time.perf_counter

                @worker.task(FUNCTION)
                async def no_op(_: Context) -> None:
                    started.append(clock())

                ready = asyncio.Event()
                stages = asyncio.create_task(bootstrap.run_stages(installation, bootstrap.STAGES, ready=ready))
                working = asyncio.create_task(_work(installation, worker))
                await ready.wait()
                yield Bench(installation, started)
                worker.stop()
                stages.cancel()
                await asyncio.gather(stages, working, return_exceptions=True)


async def _work(installation: Installation, worker: Worker) -> None:
    async with bootstrap.worker_connection(installation, worker.options) as connection:
        await worker.serve(connection)
