"""Measure one workload with the benchmarks of one side, and write its metrics.

    python -P benchmarks/against/measure_one.py '{"workload": "W2", "sync_always": false, ...}' METRICS.json

PYTHONPATH names the folder of the side: its package, and its own benchmarks. A workload that its benchmarks lack comes from the
benchmarks beside this file. So this program may use of `benchmarks` only what both sides have: the functions that it imports, with
the parameters that it passes.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import uvloop

import benchmarks

benchmarks.__path__.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.conditions import Conditions  # noqa: E402 - after the path is complete
from benchmarks.fire_lag import fire_lag  # noqa: E402
from benchmarks.latency import latency  # noqa: E402
from benchmarks.metrics import Metrics  # noqa: E402
from benchmarks.part import FUNCTION  # noqa: E402
from benchmarks.scale_out import scale_out  # noqa: E402
from benchmarks.system import System, system  # noqa: E402
from benchmarks.throughput import GRACE, IN_FLIGHT, NO_LESS, throughput, trigger  # noqa: E402
from benchmarks.wide_graph import wide_graph  # noqa: E402
from tocsin.domain.definition import JobDefinition  # noqa: E402
from tocsin.ports.queries import ExecutionQuery  # noqa: E402

API: Final = "$JS.API.STREAM."
ANSWERS_WITHIN: Final = 30.0
WITHIN: Final = 1_200.0
"""Seconds for W6, beside the registration."""
REGISTERED_PER_SECOND: Final = 150
"""Jobs a second that are registered and projected; a slower W6 is abandoned."""
AUDIT_FAILED: Final = "audit_failed"


async def measure(spec: dict[str, Any]) -> Metrics:
    """Return the metrics of a workload.

    Args:
        spec: its name (`workload`), `sync_always`, `compression` (none or s2), and the fields of `benchmarks.against.sizes`. `functions`,
            `nodes` and `tasks` are those of its unit.

    Raises:
        ValueError: no workload has this name.
    """
    workload, executions = spec["workload"], spec["executions"]
    conditions = Conditions(bool(spec["sync_always"]), tuple(spec["behind"]))
    if workload == "W4":
        return await scale_out(conditions, executions=executions)
    if workload == "W6":
        return await _registered(conditions, spec["jobs"])
    if workload == "W5":
        growth: Any = import_module("benchmarks.growth")
        growth.initialized = compressed(growth.initialized, spec["compression"])
        metrics: Metrics = await growth.growth(conditions, executions=executions)
        return metrics
    if workload == "unserved":
        unserved: Any = import_module("benchmarks.unserved")
        of_tasks: Any = Conditions(tasks=spec["tasks"])
        found: Metrics = await unserved.unserved(of_tasks, executions=spec["latency"])
        return found
    async with system(sync_always=conditions.sync_always, nodes=spec["nodes"]) as it:
        return await _on_system(it, workload, spec)


async def _on_system(it: System, workload: str, spec: dict[str, Any]) -> Metrics:
    match workload:
        case "W1":
            jobs = tuple(spec["lag"][1:] if spec["sync_always"] else spec["lag"])
            return {**await fire_lag(it, jobs), AUDIT_FAILED: await audit(it)}
        case "W2" if spec["functions"]:
            measured = await of_functions(it, spec["functions"], spec["executions"])
            return {**measured, AUDIT_FAILED: await audit(it)}
        case "W2":
            return {**await throughput(it, spec["executions"]), AUDIT_FAILED: await audit(it)}
        case "W3":
            return await latency(it, spec["latency"])
        case "graph":
            return await wide_graph(it, spec["steps"], alone=spec["latency"])
    raise ValueError(f"no workload is called {workload}")


async def of_functions(it: System, number: int, executions: int) -> Metrics:
    """Return the figures of W2 with a job for each function.

    The jobs are triggered in turn. Both sides get the same load so: the W2 of some commits has one job, however many functions the worker has.

    Raises:
        TimeoutError: some executions did not complete; the message has the number.
    """
    functions = [FUNCTION, *(f"benchmark/other-{other}" for other in range(1, number))]
    jobs = {f"functions-{place}": function for place, function in enumerate(functions)}
    for job, function in jobs.items():
        await it.define(JobDefinition(name=job, function=function, overlap_policy="allow"))
    names = list(jobs)
    async with it.installation.history() as history:
        cpu, began = it.cpu(), time.perf_counter()
        done = ExecutionQuery(status="completed", since=datetime.now(UTC) - timedelta(seconds=1))
        for first in range(0, executions, IN_FLIGHT):
            turn = range(first, min(first + IN_FLIGHT, executions))
            await asyncio.gather(*(trigger(it, names[n % number], range(n, n + 1)) for n in turn))
        deadline = began + GRACE + executions / NO_LESS
        while (completed := await history.count(done)) < executions:
            if time.perf_counter() > deadline:
                msg = f"{completed:,} of {executions:,} executions completed within {deadline - began:,.0f} s"
                raise TimeoutError(msg)
            await asyncio.sleep(0.1)
        elapsed = time.perf_counter() - began
        used = {name: (now - cpu[name]) / executions * 1_000 for name, now in it.cpu().items()}
    return {
        "executions_per_second": executions / elapsed,
        "cpu_ms_per_execution": sum(used.values()),
        **{f"cpu_ms_per_execution ({name})": milliseconds for name, milliseconds in used.items()},
    }


async def _registered(conditions: Conditions, jobs: int) -> Metrics:
    registered: Any = import_module("benchmarks.registered")
    registered.WITHIN = WITHIN + jobs / REGISTERED_PER_SECOND  # some commits set no more time for more jobs
    metrics: Metrics = await registered.registered(conditions, jobs=jobs)
    return metrics


async def audit(it: System) -> float:
    """Return 0 if `tocsin audit --history` of the side finds nothing, and otherwise 1."""
    settings = it.installation.settings
    where = ("--nats", settings.nats.url, "--data-dir", str(settings.data_dir))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tocsin", "audit", "--history", *where)
    return float(await process.wait() != 0)


def compressed(
    initialized: Callable[..., AbstractAsyncContextManager[Any]], compression: str
) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """Return `initialized` with this compression of every stream, also where the side sets another."""

    @asynccontextmanager
    async def wrapped(*arguments: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - those of the side
        async with initialized(*arguments) as installation:
            await compress(installation.connection.client, compression)
            yield installation

    return wrapped


async def compress(client: Any, compression: str) -> None:  # noqa: ANN401 - a client of any version
    """Set the compression of all streams.

    Raises:
        RuntimeError: the server refuses it.
    """
    names = await _ask(client, "NAMES", {})
    for name in names.get("streams") or []:
        config = (await _ask(client, f"INFO.{name}", {}))["config"]
        if config.get("compression", "none") != compression:
            await _ask(client, f"UPDATE.{name}", {**config, "compression": compression})


async def _ask(client: Any, verb: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a client of any version
    answer = await client.request(API + verb, json.dumps(body).encode() if body else b"", timeout=ANSWERS_WITHIN)
    told: dict[str, Any] = json.loads(answer.data)
    if "error" in told:
        raise RuntimeError(f"{verb}: {told['error']['description']}")
    return told


if __name__ == "__main__":
    command: Any = import_module("benchmarks.__main__")  # each side knows where its package keeps these two
    command.telemetry.configure(level="warning")
    command.collect_patiently()
    Path(sys.argv[2]).write_text(json.dumps(uvloop.run(measure(json.loads(sys.argv[1])))), encoding="utf-8")
