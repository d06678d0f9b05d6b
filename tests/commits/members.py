"""Processes of one log in memory, with the parts that a real process has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from tests.commits.processes import bound
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.bootstrap.commit_process import PARTITION, CommitProcess
from tocsin.bootstrap.commits import of_loop
from tocsin.engine.commit_loop import CommitLoop
from tocsin.stages.registrar import REGISTRAR, Registrar

SECRET = b"1" * 32


class Members:
    """A log, a process with stages, and processes without any."""

    def __init__(self, log: InMemoryCommitLog, clock: LoopClock) -> None:
        self.clock = clock
        self.log = log
        self.inputs = InMemoryEventLog(clock)
        self.projections = InMemoryProjections(clock)
        self._numbers = count(1)

    def _process(self) -> tuple[CommitProcess, CommitView]:
        process = CommitProcess(
            self.log,
            self.inputs,
            self.clock,
            SECRET,
            installation="tocsin",
            name=f"p{next(self._numbers)}",
            turns=InMemoryTurnChannel(),
            projections=self.projections,
        )
        assert process.snapshots is not None
        self.snapshots = process.snapshots
        return process, CommitView(self.log, PARTITION, process.seal, process.snapshots)

    @asynccontextmanager
    async def deciding(self, *, alone: str | None = None) -> AsyncIterator[tuple[CommitView, CommitLoop]]:
        """Run a process with all stages; `alone`: with the registrar alone, or with all others."""
        process, view = self._process()
        registrar = of_loop(REGISTRAR.bind(Registrar(SECRET)))
        stages = {None: [*bound(), registrar], "registrar": [registrar], "others": bound()}[alone]
        async with process.running(stages, view) as loop:
            yield view, loop

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[CommitView]:
        """Run a process without stages."""
        process, view = self._process()
        async with process.reading(view):
            yield view
