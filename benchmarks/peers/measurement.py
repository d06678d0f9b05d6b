"""Starts a peer and its server, drives a workload, and computes the metrics."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests import databases

from benchmarks.metrics import percentiles
from benchmarks.peers.bullmq import PROGRAM
from benchmarks.peers.peer import Assignment, peer
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer

NUMBERS: Final = {"W1": 1_000, "W2": 5_000, "W3": 100}
"""Jobs or tasks that a peer gets in each workload."""
NOTICE: Final = 35.0
"""Seconds at least between the start of its processes and the full minute of W1."""
MINUTE: Final = 60.0
READY_WITHIN: Final = 90.0
OVER_WITHIN: Final = 600.0
ENDS_WITHIN: Final = 10.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class NotMeasuredError(Exception):
    """The reason why a peer has no figures."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The peer and its results."""

    version: str
    metrics: dict[str, float]


async def measure(name: str, workload: str, *, python: str = sys.executable, number: int | None = None) -> Measured:
    """Measure a peer in a workload.

    Args:
        name: a member of `PEERS`.
        workload: a key of `NUMBERS`.
        python: the interpreter that has its library.
        number: the number of jobs or tasks; None for the number in `NUMBERS`.

    Raises:
        NotMeasuredError: it is not installed, did not start, or did not finish.
    """
    version = _version(name, python)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"tocsin-peer-{name}-")))
        try:
            url = stack.enter_context(_server(peer(name).SERVER))
        except (OSError, AssertionError, subprocess.SubprocessError) as error:
            raise NotMeasuredError(f"its server does not start: {error!r}") from error
        due = (time.time() + NOTICE) // MINUTE * MINUTE + MINUTE if workload == "W1" else None
        assignment = Assignment(name, workload, url, folder, number or NUMBERS[workload], due)
        processes = _Processes(assignment, python)
        try:
            return Measured(version, await processes.measure())
        except (TimeoutError, OSError, ValueError) as error:
            raise NotMeasuredError(f"{type(error).__name__} {error}: {processes.last_words()}") from error


class _Processes:
    """The client and the other processes of a peer."""

    def __init__(self, assignment: Assignment, python: str) -> None:
        self._assignment, self._python = assignment, python
        self._log = assignment.folder / "log"

    async def measure(self) -> dict[str, float]:
        it = peer(self._assignment.peer)
        async with AsyncExitStack() as stack:
            if it.PREPARES:
                prepare = await stack.enter_async_context(self._running("prepare"))
                async with asyncio.timeout(READY_WITHIN):
                    if await prepare.wait():
                        raise ValueError("it cannot prepare its store")
            client = await stack.enter_async_context(self._running("client"))
            scheduling = it.PARTS_THAT_SCHEDULE if self._assignment.due else ()
            for part in (*it.PARTS, *scheduling):
                await stack.enter_async_context(self._running(part))
            await self._line(client, READY_WITHIN)
            used = cpu_of_descendants()
            assert client.stdin is not None
            client.stdin.write(b"go\n")
            seen = json.loads(await self._line(client, OVER_WITHIN))
            used = cpu_of_descendants() - used
        return _metrics(self._assignment, seen, used)

    def last_words(self) -> str:
        """Return the last error that its processes printed, or else their last line."""
        said = self._log.read_text("utf-8", "replace").split("\n") if self._log.exists() else []
        lines = [line.strip() for line in said if line.strip()]
        return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it said nothing")

    @asynccontextmanager
    async def _running(self, part: str) -> AsyncIterator[asyncio.subprocess.Process]:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(self._python, "-m", "benchmarks.peers.part", part),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if part == "client" else log,
                stderr=log,
                env=self._assignment.environment(),
                start_new_session=True,  # so that what it started ends with it
            )
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), ENDS_WITHIN)

    async def _line(self, client: asyncio.subprocess.Process, within: float) -> bytes:
        assert client.stdout is not None
        async with asyncio.timeout(within):
            line = await client.stdout.readline()
        if not line:
            raise ValueError("its client ended")
        return line


def _metrics(assignment: Assignment, seen: dict[str, Any], cpu: float) -> dict[str, float]:
    number = assignment.number
    if assignment.workload == "W1":
        if not (lags := seen["lags"]):
            raise ValueError("no job began")
        found = {**percentiles(lags, unit="ms", scale=1000), "missed": number - seen["distinct"]}
        found["twice"] = len(lags) - seen["distinct"]
        return {f"{metric} ({number:,})": value for metric, value in found.items()}
    if assignment.workload == "W2":
        return {"executions_per_second": number / seen["seconds"], "cpu_ms_per_execution": cpu / number * 1000}
    return percentiles(seen["waits"], unit="ms", scale=1000)


@contextmanager
def _server(kind: str) -> Iterator[str]:
    """Yield the URL of a throw-away server with its default persistence."""
    if kind == "nats":
        with EmbeddedServer(port=ANY_PORT).start() as nats:
            yield nats.url
    elif kind == "redis":
        with databases.redis() as redis:
            yield redis.url()
    elif kind == "postgresql":
        with databases.postgresql(durable=True) as postgresql:
            yield postgresql.new_database()
    else:
        yield ""


def _version(name: str, python: str) -> str:
    if not (distributions := peer(name).DISTRIBUTIONS):
        question = [PROGRAM[0], "-p", "require('ioredis'); require('bullmq/package.json').version"]
    else:
        program = "import sys; from importlib.metadata import version; print([version(n) for n in sys.argv[1:]][0])"
        question = [python, "-c", program, *distributions]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, check=True)  # noqa: S603 - our own
    except FileNotFoundError as error:
        raise NotMeasuredError(f"there is no {error.filename}") from error
    except subprocess.CalledProcessError as error:
        missing = error.stderr.split()[-1] if distributions else "bullmq, with ioredis,"
        raise NotMeasuredError(f"{missing} is not installed") from error
    return answer.stdout.strip()


def cpu_of_descendants() -> float:
    """Return the CPU seconds of all descendants of this process, exited children included."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:  # it just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        used[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS
    total, found = 0.0, list(children.get(os.getpid(), []))
    while found:
        pid = found.pop()
        total += used[pid]
        found += children.get(pid, [])
    return total
