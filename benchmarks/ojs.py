"""OJS: executions a second of Open Job Spec workers over HTTP, beside a native worker.

Trigger and stages are the same; only the worker differs: a native worker takes tasks from the log, HTTP clients take them from one
gateway. The clients fetch up to `COUNT` jobs per request and acknowledge them in one, on a kept connection. `ratio_single_acks` is that of
clients that acknowledge each job separately. The clients' own CPU time is in the figure, because they share the machine; so they are lean.

Stored messages per execution: the 6 of W2, and the timer of the lease = 7. Reads of the stages: none on the usual path. The cost of
one job for the gateway, in requests to NATS and messages from NATS:

| | sends | receives |
|---|---|---|
| fetch, for each job | the lease's timer, the claim, the acknowledgement of the task | the task, two stored |
| fetch, once for all its jobs | a pull request, a read of all executions | three facts for each job |
| ack | a read of the execution, the report | three facts, their end, one stored |
| push | a read whether the id is taken, the input | its end, one stored |
| awaited results | | each event of each execution, once |

No request polls for an outcome: one follower of the log reads all of them. The timer is stored before the claim, because a claim
without a timer would never end. The read of an ack returns the current holder of the job, for jobs from any gateway. These messages
take about 40 % of the gateway's time, HTTP 20 %, decoding and folding events 20 %; more copies share the work.

The timers of acknowledged jobs fire when their leases end, after this workload; `TOCSIN_WORKER__LEASE=2s` makes them fire during it.
They change little: the lease keeper remembers finished executions, or reads many with one request.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
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
SINGLY: Final = "over-http-singly"
TOGETHER: Final = "over-http"
WAIT: Final = 2_000
"""Milliseconds that a fetch waits for its first job."""
_WITHIN: Final = 60.0
_REST: Final = 0.1


async def ojs(system: System, executions: int = EXECUTIONS) -> Metrics:
    """Executions a second, natively and over HTTP, and the ratio."""
    native = await throughput(system, executions, job="native")
    # Two jobs: the message id of a request has the job's name, and the log stores each id once.
    for name in (SINGLY, TOGETHER):
        await system.define(JobDefinition(name=name, function=FUNCTION, overlap_policy="allow", queue=QUEUE))
    async with _gateway(system) as url:
        async with _workers(url, _work_singly):
            singly = await drive(system, SINGLY, executions)
        async with _workers(url, _work):
            measured = await drive(system, TOGETHER, executions)
    rate = native["executions_per_second"]
    return {
        "native_executions_per_second": rate,
        "ratio": measured["executions_per_second"] / rate,
        "ratio_single_acks": singly["executions_per_second"] / rate,
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
async def _workers(url: str, work: Callable[[str, str], Coroutine[None, None, None]]) -> AsyncIterator[None]:
    working = [asyncio.create_task(work(url, f"w{n}")) for n in range(WORKERS)]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def _work(url: str, name: str) -> None:
    """Fetch jobs and acknowledge them together, on one connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    asked = {"worker_id": name, "queues": [QUEUE], "count": COUNT, "wait_ms": WAIT}
    async with connected(host, int(port)) as client:
        while True:
            jobs = (await client.post("/ojs/v1/workers/fetch", asked))["jobs"]
            if jobs:
                acks = [{"job_id": job["id"]} for job in jobs]
                await client.post("/ojs/v1/workers/ack/batch", {"worker_id": name, "acks": acks})


async def _work_singly(url: str, name: str) -> None:
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
