"""Finished executions in the log and in the history, made by running them.

The streams are then as production leaves them: the messages of each execution with their guards and ids, durables whose last
acknowledgement is the last message, the recoverer's position, definitions in their bucket. The real recorder writes the history
afterwards, so that its rate is its own. The archiver does not run, because it would keep at most 500,000 messages in the log.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.part import FUNCTION, WORKER
from benchmarks.progress import Progress
from benchmarks.system import RECORDER, STAGES, System, running
from benchmarks.throughput import trigger
from tocsin.bootstrap import Installation
from tocsin.domain.definition import JobDefinition
from tocsin.ports.queries import ExecutionQuery

ARCHIVER: Final = "archiver"
WITHOUT_ARCHIVER: Final = ",".join(name for name in STAGES.split(",") if name != ARCHIVER)
PARTS: Final = (WITHOUT_ARCHIVER, WORKER)
JOBS: Final = 100
"""Number of jobs that share the executions."""
AT_ONCE: Final = 250
AHEAD: Final = 4_000
"""Largest number of requested executions that have not started; an installation that keeps up has no more."""
NO_LESS: Final = 200
"""Executions a second; a slower fill is abandoned."""
GRACE: Final = 120.0
"""Seconds that a fill of any size may take."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The rates of a fill, in executions a second."""

    executed: float
    recorded: float


async def fill(installation: Installation, executions: int, *, nats: Mapping[str, int]) -> Filled:
    """Run executions in an empty installation until it holds a number of finished executions.

    Args:
        installation: initialized and idle.
        executions: the number of executions.
        nats: the process ids of its servers, by name.

    Raises:
        TimeoutError: the fill was not complete in time.
    """
    async with asyncio.timeout(GRACE + executions / NO_LESS):
        began = time.perf_counter()
        async with running(installation, PARTS, nats=nats) as system:
            await _execute(system, executions)
        executed = time.perf_counter() - began
        began = time.perf_counter()
        async with running(installation, (RECORDER,), nats=nats):
            await _recorded(installation, executions)
        return Filled(executions / executed, executions / (time.perf_counter() - began))


async def _execute(system: System, executions: int) -> None:
    """Run all executions, and wait until nothing is stored any more."""
    progress = Progress("executions before, run", executions)
    jobs = [JobDefinition(name=f"before-{i}", function=FUNCTION, overlap_policy="allow") for i in range(JOBS)]
    await system.define(*jobs)
    for first in range(0, executions, AT_ONCE):
        end = min(first + AT_ONCE, executions)
        await trigger(system, jobs[first // AT_ONCE % JOBS].name, range(first, end))
        await system.until_started(end - AHEAD, within=GRACE)
        progress.at(max(0, end - AHEAD))
    await system.until_started(executions, within=GRACE)
    await system.until_quiet()
    progress.at(executions)


async def _recorded(installation: Installation, executions: int) -> None:
    """Wait until the history holds the end of each execution."""
    progress, done = Progress("executions before, recorded", executions), ExecutionQuery(status="completed")
    async with installation.history() as history:
        while (recorded := await history.count(done)) < executions:
            progress.at(recorded)
            await asyncio.sleep(1)
    progress.at(executions)
