"""The system under measurement: the processes of an installation, as an operator runs them."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from nats.aio.msg import Msg

from benchmarks.part import READY, STARTED, TALLY, WORKER
from benchmarks.processes import cpu_of, memory_of
from benchmarks.servers import initialized, servers
from tocsin import bootstrap
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
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

READY_WITHIN: Final = 120.0
ANSWERS_WITHIN: Final = 30.0
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
    parts: int
    """How many of them are stages and workers."""
    started: list[Start] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def define(self, *definitions: JobDefinition) -> None:
        """Register jobs that are not there yet."""
        for first in range(0, len(definitions), _AT_ONCE):
            facts = [f for d in definitions[first : first + _AT_ONCE] for f in ledger.define(ledger.initial, d)]
            await asyncio.gather(*(self.installation.log.append(fact, expect=0) for fact in facts))

    async def until_started(self, number: int, *, within: float) -> None:
        """Wait until so many handlers have begun since the system was started.

        Raises:
            TimeoutError: they did not within so many seconds; the text says how many did.
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
        """How many messages are stored, in both streams."""
        return sum([await self.stored(stream) for stream in (Stream.LEDGER, Stream.LOG)])

    async def stored(self, stream: Stream) -> int:
        """How many messages are stored in one of them."""
        told = await self.installation.connection.manage(f"STREAM.INFO.{self.installation.names.stream(stream)}")
        messages: int = told["state"]["messages"]
        return messages

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each process has used."""
        return {name: cpu_of(pid) for name, pid in self.processes.items()}

    def memory(self) -> dict[str, float]:
        """Megabytes that each process holds."""
        return {name: memory_of(pid) for name, pid in self.processes.items()}

    async def tally(self) -> Counter[str]:
        """What the stages and workers have asked the log for until now (`benchmarks.tally`).

        Raises:
            nats.errors.TimeoutError: one of them does not answer.
        """
        client, total = self.installation.connection.client, Counter[str]()
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await client.publish(TALLY, reply=inbox)
        for _ in range(self.parts):
            total.update(json.loads((await answers.next_msg(ANSWERS_WITHIN)).data))
        await answers.unsubscribe()
        return total

    async def _hear(self, message: Msg) -> None:
        self.started += [Start(*one) for one in json.loads(message.data)]
        self.changed.set()


@asynccontextmanager
async def running(
    installation: Installation, parts: Sequence[str], *, nats: Mapping[str, int]
) -> AsyncIterator[System]:
    """Start the processes and wait until each is ready; end them behind the block.

    `nats`: the process ids of the servers, by name.
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
    """All of it, on servers of its own."""
    async with (
        servers(sync_always=sync_always, nodes=nodes) as nats,
        initialized(nats.settings) as installation,
        running(installation, parts, nats=nats.pids) as it,
    ):
        yield it


def _short(part: str) -> str:
    """What runs in a process, in a word."""
    names = part.split(",")
    kinds = {WHEN: ["when"], WHAT: ["what"]}.get(part, ["stages"] if set(names) - {RECORDER, WORKER} else [])
    return "+".join([*kinds, *(name for name in (RECORDER, WORKER) if name in names)])
