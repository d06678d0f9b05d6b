"""OJS: executions a second that workers of the Open Job Spec do through HTTP, beside a native worker's in the same run.

The same trigger, the same stages; only who takes the task differs: a native worker from the log, or HTTP clients from one
gateway, which fetch up to `COUNT` jobs at once and acknowledge each by itself, as the protocol has it, each on a connection
that is kept. The clients' own time is in the figure, since they share the machine; so they are ones that cost little.

Stored messages per execution: the 6 of W2, and the timer that would end the lease = 7. Reads of the stages: none on the usual
road. What one job costs the gateway, of requests to NATS and of messages from there:

| | sends | receives |
|---|---|---|
| fetch, for each job | the lease's timer, the claim, the acknowledgement of the task | the task, two stored |
| fetch, once for all its jobs | a pull request, a read of all executions | three facts for each job |
| ack | a read of the execution, the report | three facts, their end, one stored |
| push | a read whether the id is taken, the wish | its end, one stored |
| whatever is awaited | | each fact of each execution, once |

Nothing asks for an outcome: one follower of the log hears of all of them. The timer is stored before the claim, since a claim
without one would stand for ever; the read of an ack tells who holds the job now, whichever gateway handed it out. Of
the gateway's time these messages take about 40 %, HTTP 20 %, decoding and folding facts 20 %; more copies of it share the work.

The timers of what was answered fire when the leases are over, behind the end of this workload; `TOCSIN_WORKER__LEASE=2s` has
them fire within it. They change little: the lease keeper remembers what is over, or reads many executions at once.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import httpx

from benchmarks.lean_http import connected
from benchmarks.metrics import Metrics
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


async def ojs(system: System, executions: int = EXECUTIONS) -> Metrics:
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
    working = [asyncio.create_task(_work(url, f"w{n}")) for n in range(WORKERS)]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def _work(url: str, name: str) -> None:
    """Fetch jobs and acknowledge each, on as many connections as there are jobs at once."""
    host, _, port = url.removeprefix("http://").partition(":")
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(host, int(port))) for _ in range(COUNT)]
        asked = {"worker_id": name, "queues": [QUEUE], "count": COUNT, "wait_ms": WAIT}
        while True:
            jobs = (await clients[0].post("/ojs/v1/workers/fetch", asked))["jobs"]
            acks = (
                client.post("/ojs/v1/workers/ack", {"job_id": job["id"], "worker_id": name})
                for client, job in zip(clients, jobs, strict=False)
            )
            await asyncio.gather(*acks)
