"""The system under measurement: a throw-away NATS server and the processes of an installation, as an operator runs them."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nats.aio.msg import Msg

from benchmarks.part import READY, STARTED, WORKER
from tocsin import bootstrap
from tocsin.adapters.nats.server import ANY_PORT, EmbeddedServer
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.settings import Settings
from tocsin.subjects import Stream

RECORDER: Final = "recorder"
STAGES: Final = ",".join(name for name in bootstrap.STAGES if name not in {RECORDER, "mq_bridge"})
WHEN: Final = "registrar,ticker,planner"
WHAT: Final = ",".join(name for name in STAGES.split(",") if name not in WHEN.split(","))
USUAL: Final = (WHEN, WHAT, RECORDER, WORKER)
"""Four processes: the stages that decide when, those that decide what, the history, a worker."""
NOT_URGENT: Final = ("nice", "-n", "10")
"""The history may be a moment behind: where there are fewer cores than processes, the others go first."""
ONE_PROCESS: Final = (f"{STAGES},{RECORDER},{WORKER}",)


def copies(number: int) -> tuple[str, ...]:
    """The same with so many copies of the deciding stages."""
    return (*(STAGES for _ in range(number)), RECORDER, WORKER)


READY_WITHIN: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a handler, by the wall clock (seconds since 1970) and by the machine's monotonic one."""

    execution_id: str
    scheduled_time: float
    at: float
    monotonic: float

    @property
    def lag(self) -> float:
        """Seconds between the scheduled instant and the handler's beginning."""
        return self.at - self.scheduled_time


@dataclass
class System:
    """What a workload works on."""

    installation: Installation
    processes: dict[str, int]
    """Process ids by what runs in them; `nats` and `client` among them."""
    started: list[Start] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def define(self, *definitions: JobDefinition) -> None:
        """Register jobs that are not there yet."""
        for first in range(0, len(definitions), _AT_ONCE):
            facts = [f for d in definitions[first : first + _AT_ONCE] for f in ledger.define(ledger.initial, d)]
            await asyncio.gather(*(self.installation.log.append(fact, expect=0) for fact in facts))

    async def until_started(self, number: int) -> None:
        """Wait until so many handlers have begun since the system was started."""
        while len(self.started) < number:
            self.changed.clear()
            await self.changed.wait()

    async def messages(self) -> int:
        """How many messages are stored, in all streams."""
        manage, names = self.installation.connection.manage, self.installation.names
        streams = [await manage(f"STREAM.INFO.{names.stream(s)}") for s in (Stream.LEDGER, Stream.LOG)]
        return sum(stream["state"]["messages"] for stream in streams)

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each process has used."""
        return {name: cpu_of(pid) for name, pid in self.processes.items()}

    def memory(self) -> dict[str, float]:
        """Megabytes that each process holds."""
        return {name: memory_of(pid) for name, pid in self.processes.items()}

    async def _hear(self, message: Msg) -> None:
        self.started += [Start(*one) for one in json.loads(message.data)]
        self.changed.set()


@asynccontextmanager
async def server(*, sync_always: bool = False) -> AsyncIterator[tuple[Settings, int]]:
    """A server on a folder of its own; the settings that lead there, and its process."""
    with tempfile.TemporaryDirectory(prefix="tocsin-benchmark-") as folder:
        async with EmbeddedServer(port=ANY_PORT, sync_always=sync_always).running() as running:
            yield Settings.model_validate({"nats": {"url": running.url}, "data_dir": Path(folder)}), running.pid


@asynccontextmanager
async def initialized(settings: Settings) -> AsyncIterator[Installation]:
    """An installation whose streams are there."""
    async with bootstrap.connect(settings) as installation:
        await bootstrap.initialize(installation)
        yield installation


@asynccontextmanager
async def running(installation: Installation, parts: Sequence[str], *, nats: int) -> AsyncIterator[System]:
    """Start the processes and wait until each is ready; end them behind the block."""
    client, settings = installation.connection.client, installation.settings
    system = System(installation, {"nats": nats, "client": os.getpid()})
    ready: asyncio.Queue[None] = asyncio.Queue()

    async def is_ready(_: Msg) -> None:
        ready.put_nowait(None)

    subscriptions = [await client.subscribe(STARTED, cb=system._hear), await client.subscribe(READY, cb=is_ready)]  # noqa: SLF001 - its own module
    await client.flush()
    command = [sys.executable, "-m", "benchmarks.part", settings.nats.url, str(settings.data_dir)]
    before = {RECORDER: NOT_URGENT}
    processes = [subprocess.Popen([*before.get(part, ()), *command, part]) for part in parts]  # noqa: ASYNC220, S603 - our own, and quick
    try:
        for number, (part, process) in enumerate(zip(parts, processes, strict=True), start=1):
            system.processes[f"{number}: {_short(part)}"] = process.pid
        async with asyncio.timeout(READY_WITHIN):
            for _ in processes:
                await ready.get()
        yield system
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        for subscription in subscriptions:
            await subscription.unsubscribe()


@asynccontextmanager
async def system(parts: Sequence[str] = USUAL, *, sync_always: bool = False) -> AsyncIterator[System]:
    """All of it, on a server of its own."""
    async with (
        server(sync_always=sync_always) as (settings, nats),
        initialized(settings) as installation,
        running(installation, parts, nats=nats) as it,
    ):
        yield it


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(pid: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def percentiles(values: Collection[float], *, unit: str, scale: float = 1.0) -> dict[str, float]:
    """p50, p99 and the maximum, named with their unit."""
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p99": int(len(ordered) * 0.99), "max": len(ordered) - 1}
    return {f"{name}_{unit}": ordered[index] * scale for name, index in at.items()}


def _short(part: str) -> str:
    names = part.split(",")
    kinds = {WHEN: ["when"], WHAT: ["what"]}.get(part, ["stages"] if set(names) - {RECORDER, WORKER} else [])
    return "+".join([*kinds, *(name for name in (RECORDER, WORKER) if name in names)])
