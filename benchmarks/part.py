"""One process of the system under measurement: some stages, or a worker, or both.

    python -m benchmarks.part NATS_URL DATA_DIR ticker,planner,worker

The worker publishes on `STARTED` when each handler started, in one message for all recent starts.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from tocsin import Context, Worker, bootstrap, telemetry
from tocsin.bootstrap import Installation
from tocsin.cli.runtime.event_loop import collect_patiently
from tocsin.settings import Settings

FUNCTION: Final = "benchmark/no-op"
STARTED: Final = "benchmark.started"
READY: Final = "benchmark.ready"
WORKER: Final = "worker"
CONCURRENCY: Final = 256


FUNCTIONS: Final = "BENCHMARK_FUNCTIONS"
"""The variable with the number of functions of the worker (`--functions`). W2 has a job for each of them."""


def functions() -> list[str]:
    """Return the functions of the worker."""
    return [FUNCTION, *(f"benchmark/other-{number}" for number in range(1, int(os.environ.get(FUNCTIONS, "1"))))]


async def run(url: str, folder: Path, names: list[str]) -> None:
    """Run until SIGTERM."""
    settings = Settings.model_validate({"nats": {"url": url}, "data_dir": folder})
    stages = [name for name in names if name != WORKER]
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with bootstrap.connect(settings) as installation:
        ready = asyncio.Event()
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(asked.wait())]
        if stages:
            tasks.append(asyncio.create_task(bootstrap.run_stages(installation, stages, ready=ready)))
            await ready.wait()
        if WORKER in names:
            tasks.append(asyncio.create_task(_work(installation)))
        await installation.connection.client.publish(READY, ",".join(names).encode())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _work(installation: Installation) -> None:
    worker = Worker(concurrency=CONCURRENCY)
    begun: list[tuple[str, float, float, float]] = []
    some = asyncio.Event()

    async def no_op(context: Context) -> None:
        begun.append((context.execution_id, context.scheduled_time.timestamp(), time.time(), time.perf_counter()))
        some.set()

    for function in functions():
        worker.task(function)(no_op)

    async def tell() -> None:
        while True:
            await some.wait()
            some.clear()
            body = json.dumps(begun).encode()
            begun.clear()
            await installation.connection.client.publish(STARTED, body)

    async with bootstrap.worker_connection(installation, worker.options) as connection, asyncio.TaskGroup() as group:
        group.create_task(tell())
        await worker.serve(connection)


if __name__ == "__main__":
    telemetry.configure(level="warning")
    collect_patiently()
    uvloop.run(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")))
