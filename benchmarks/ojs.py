"""OJS: executions a second that a worker of the Open Job Spec does through HTTP, beside a native worker's in the same run.

The same trigger, the same stages; only who takes the task differs: a native worker from the log, or an HTTP client from one
gateway, which fetches up to `COUNT` jobs at once and acknowledges each by itself, as the protocol has it. The client's own
time is in the figure: it shares the machine.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx

from benchmarks.part import FUNCTION
from benchmarks.system import System
from benchmarks.throughput import drive, throughput
from tocsin.domain.definition import JobDefinition

EXECUTIONS: Final = 4_000
COUNT: Final = 50
WORKERS: Final = 4
QUEUE: Final = "http"
WAIT: Final = 2_000
"""Milliseconds that a fetch waits for its first job."""
_WITHIN: Final = 60.0
_REST: Final = 0.1


async def ojs(system: System, executions: int = EXECUTIONS) -> dict[str, float]:
    """Executions a second, natively and over HTTP, and the ratio."""
    native = await throughput(system, executions, job="native")
    job = JobDefinition(name="over-http", function=FUNCTION, overlap_policy="allow", queue=QUEUE)
    await system.define(job)
    async with _gateway(system) as url, _workers(url):
        measured = await drive(system, job.name, executions)
    rate = measured["executions_per_second"]
    return {
        "native_executions_per_second": native["executions_per_second"],
        "ratio": rate / native["executions_per_second"],
        **measured,
    }


@asynccontextmanager
async def _gateway(system: System) -> AsyncIterator[str]:
    """One copy of `tocsin serve`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = system.installation.settings
    environment = os.environ | {
        "TOCSIN_NATS_URL": settings.nats.url,
        "TOCSIN_DATA_DIR": str(settings.data_dir),
        "TOCSIN_SERVER__RATE": "1000000",
        "TOCSIN_SERVER__BURST": "1000000",
        "TOCSIN_METRICS__ENABLED": "false",
        "TOCSIN_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "tocsin", "serve", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    system.processes["gateway"] = process.pid
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(_WITHIN):
            while True:
                try:
                    (await client.get(f"{url}/ojs/manifest")).raise_for_status()
                    break
                except httpx.TransportError:
                    await asyncio.sleep(_REST)
        yield url
    finally:
        del system.processes["gateway"]
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _workers(url: str) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=f"{url}/ojs/v1/workers", timeout=_WITHIN) as client:
        working = [asyncio.create_task(_work(client, f"w{n}")) for n in range(WORKERS)]
        try:
            yield
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


async def _work(client: httpx.AsyncClient, name: str) -> None:
    asked = {"worker_id": name, "queues": [QUEUE], "count": COUNT, "wait_ms": WAIT}
    while True:
        answer = await client.post("/fetch", json=asked)
        answer.raise_for_status()
        acks = (client.post("/ack", json={"job_id": job["id"], "worker_id": name}) for job in answer.json()["jobs"])
        for acked in await asyncio.gather(*acks):
            acked.raise_for_status()
