"""The system under measurement: the processes of an installation, as an operator runs them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from nats.aio.msg import Msg

from benchmarks.part import READY, STARTED, WORKER
from benchmarks.processes import cpu_of, memory_of, peak_memory_of
from benchmarks.servers import initialized, servers
from tocsin import bootstrap
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition

RECORDER: Final = "recorder"
REGISTRAR: Final = "registrar"
"""The stage that registers jobs before the measured processes start."""
STAGES: Final = ",".join(name for name in bootstrap.STAGE_NAMES if name not in {RECORDER, "mq_bridge"})
USUAL: Final = (STAGES, RECORDER, WORKER)
"""Three processes: the stages, the history, a worker."""
_APART: Final = ("registrar,ticker", "planner", "matcher", "lock_keeper,dag_advancer,retrier,lease_keeper,recoverer")
_TAKEN: Final = {RECORDER, *",".join(_APART).split(",")}
SEPARATE: Final = (*_APART, ",".join(name for name in STAGES.split(",") if name not in _TAKEN), RECORDER, WORKER)
"""The stages in five processes. Each folds the log, and they write it in turns."""
NOT_URGENT: Final = ("nice", "-n", "10")
"""The history may lag for a moment: with fewer cores than processes, the others have priority."""
ONE_PROCESS: Final = (f"{STAGES},{RECORDER},{WORKER}",)

READY_WITHIN: Final = 120.0
QUIET_S: Final = 1.0
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a handler, by the wall clock (UNIX seconds) and the monotonic clock."""

    execution_id: str
    scheduled_time: float
    at: float
    monotonic: float

    @property
    def lag(self) -> float:
        """Return the seconds between the scheduled instant and the handler's start."""
        return self.at - self.scheduled_time


@dataclass
class System:
    """The running system that a workload uses."""

    installation: Installation
    processes: dict[str, int]
    """Process ids by name, `nats` and `client` included."""
    parts: int
    """The number of stage and worker processes."""
    started: list[Start] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def define(self, *definitions: JobDefinition) -> None:
        """Register jobs that are not registered yet."""
        for first in range(0, len(definitions), _AT_ONCE):
            facts = [f for d in definitions[first : first + _AT_ONCE] for f in ledger.define(ledger.initial, d)]
            await asyncio.gather(*(self.installation.log.append(fact, expect=0) for fact in facts))

    async def until_started(self, number: int, *, within: float) -> None:
        """Wait until a number of handlers have started since the system was started.

        Raises:
            TimeoutError: fewer started in time; the message has the number.
        """
        try:
            async with asyncio.timeout(within):
                while len(self.started) < number:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            msg = f"{len(self.started):,} of {number:,} handlers began within {within:,.0f} s"
            raise TimeoutError(msg) from None

    async def messages(self) -> int:
        """Return the number of messages that all streams ever stored."""
        manage = self.installation.connection.manage
        there_are = (await manage("STREAM.NAMES"))["streams"]
        infos = [await manage(f"STREAM.INFO.{name}") for name in self.installation.names.own_streams() & {*there_are}]
        return sum(info["state"]["last_seq"] for info in infos)

    def cpu(self) -> dict[str, float]:
        """Return the seconds of CPU that each process has used."""
        return {name: cpu_of(pid) for name, pid in self.processes.items()}

    def memory(self) -> dict[str, float]:
        """Return the megabytes that each process holds."""
        return {name: memory_of(pid) for name, pid in self.processes.items()}

    def peak_memory(self) -> dict[str, float]:
        """Return the megabytes that each process held at most."""
        return {name: peak_memory_of(pid) for name, pid in self.processes.items()}

    async def until_quiet(self) -> None:
        """Wait until nothing is stored for some time."""
        stored = -1
        while stored != (stored := await self.messages()):  # noqa: ASYNC110 - a server does not signal
            await asyncio.sleep(QUIET_S)

    async def _hear(self, message: Msg) -> None:
        self.started += [Start(*one) for one in json.loads(message.data)]
        self.changed.set()


@asynccontextmanager
async def running(
    installation: Installation, parts: Sequence[str], *, nats: Mapping[str, int]
) -> AsyncIterator[System]:
    """Start the processes, wait until each is ready, and stop them after the block.

    `nats` holds the process ids of the servers, by name.
    """
    client, settings = installation.connection.client, installation.settings
    system = System(installation, {**nats, "client": os.getpid()}, len(parts))
    ready: asyncio.Queue[None] = asyncio.Queue()

    async def is_ready(_: Msg) -> None:
        ready.put_nowait(None)

    subscriptions = [await client.subscribe(STARTED, cb=system._hear), await client.subscribe(READY, cb=is_ready)]  # noqa: SLF001 - its own module
    await client.flush()
    command = [sys.executable, "-m", "benchmarks.part", settings.nats.url, str(settings.data_dir)]
    before = {RECORDER: NOT_URGENT} if len(parts) > 1 else {}
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
async def system(parts: Sequence[str] = USUAL, *, sync_always: bool = False, nodes: int = 1) -> AsyncIterator[System]:
    """Start the whole system on servers of its own."""
    async with (
        servers(sync_always=sync_always, nodes=nodes) as nats,
        initialized(nats.settings) as installation,
        running(installation, parts, nats=nats.pids) as it,
    ):
        yield it


def _short(part: str) -> str:
    """Return a short name for a process."""
    names = part.split(",")
    kinds = ["stages"] if set(names) - {RECORDER, WORKER} else []
    return "+".join([*kinds, *(name for name in (RECORDER, WORKER) if name in names)])
