"""Carrying out the plan, and restarting what it killed."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from tests.system.chaos.installations import SiteOfUsers
from tests.system.chaos.plan import How, Kind, Strike
from tests.system.processes import GROUPS, Program
from tocsin import bootstrap
from tocsin.adapters.nats.server.cluster import Node, RunningCluster

COPIES: Final = 2
WORKERS: Final = 4


class Fleet:
    """All processes, by name."""

    def __init__(
        self, tocsin: SiteOfUsers, cluster: RunningCluster, *, separate: bool = False, port: int | None = None
    ) -> None:
        """Start `COPIES` of each group of stages (`separate`: of each stage), `WORKERS`, and the API if it has a port."""
        self._tocsin = tocsin
        self._cluster = cluster
        groups = [(stage,) for stage in bootstrap.STAGE_NAMES] if separate else GROUPS
        stages = [(f"{group[0]}{'+' * (len(group) > 1)}-{n + 1}", group) for group in groups for n in range(COPIES)]
        self.stages = {name: self._started(group) for name, group in stages}
        if port is not None:
            tocsin.log_in("api")
            self.stages["api"] = tocsin.start_gateway(port)
        tocsin.log_in("worker")
        self.workers = {f"worker-{n + 1}": tocsin.start_worker() for n in range(WORKERS)}
        self.nodes = {node.name: node for node in cluster.nodes}
        self.struck: Counter[tuple[How, Kind]] = Counter()

    def _started(self, group: tuple[str, ...]) -> Program:
        """Start a group as the user of its only stage, or as the user of all stages."""
        self._tocsin.log_in(group[0].replace("_", "-") if len(group) == 1 else "scheduler")
        return self._tocsin.start(*group)

    @property
    def names(self) -> Mapping[Kind, Sequence[str]]:
        """The targets of strikes."""
        return {"stage": [*self.stages], "worker": [*self.workers], "node": [*self.nodes]}

    async def strike(self, strikes: Sequence[Strike], tell: Callable[[str], None]) -> None:
        """Carry a plan out. A node is struck only after all nodes have recovered from the last strike."""
        for strike in strikes:
            victims = [self._victim(name) for name in strike.victims]
            if any(isinstance(victim, Node) for victim in victims):
                await asyncio.to_thread(self._cluster.await_complete)
            tell(str(strike))
            for name in strike.victims:
                self.struck[strike.how, self._kind(name)] += 1
            if strike.how == "kill":
                await self._kill(victims, strike.seconds)
            else:
                await self._pause(victims, strike.seconds)
            await asyncio.sleep(strike.rest)
        await asyncio.to_thread(self._cluster.await_complete)
        await self._tocsin.ready()

    async def _kill(self, victims: Sequence[Program | Node], seconds: float) -> None:
        for victim in victims:
            if isinstance(victim, Program):
                victim.kill()
            else:
                os.kill(victim.server.pid, signal.SIGKILL)
        await asyncio.sleep(seconds)
        for victim in victims:
            if isinstance(victim, Program):
                victim.start()
            else:
                await asyncio.to_thread(victim.restart)

    async def _pause(self, victims: Sequence[Program | Node], seconds: float) -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for victim in victims:
                os.kill(victim.pid if isinstance(victim, Program) else victim.server.pid, number)
            if number == signal.SIGSTOP:
                await asyncio.sleep(seconds)

    def _victim(self, name: str) -> Program | Node:
        programs = {**self.stages, **self.workers}
        return programs[name] if name in programs else self.nodes[name]

    def _kind(self, name: str) -> Kind:
        return next(kind for kind, names in self.names.items() if name in names)

    def deaths(self) -> dict[str, str]:
        """Return the processes that ended without a kill, with their last output."""
        programs = chain(self.stages.items(), self.workers.items())
        return {name: program.said()[-4_000:] for name, program in programs if program.ended is not None}
