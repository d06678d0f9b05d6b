"""The leases of the stages of this process on the log of commits."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.clock_guard import ClockGuard
from ..engine.commit_loop import CommitLoop
from ..engine.commit_writer import CommitWriter
from ..engine.leader_election import LeaderElection
from ..engine.presence import Readers
from ..engine.stage import BoundStage
from ..engine.stage_leases import StageLeases, lease_of
from ..ports import Clock, InputLog, Projections
from ..settings import Leader


@dataclass(frozen=True, slots=True)
class Leading:
    """The settings and ports that the leases of stages need."""

    projections: Projections
    inputs: InputLog
    """The log that gives leaders their time."""
    clock: Clock
    leader: Leader
    finish_within: float
    """Seconds that the decisions of a process get at its end."""

    def leases(self, stages: Sequence[BoundStage], name: str, writer: CommitWriter, readers: Readers) -> StageLeases:
        """Return the candidates of a process for the leases of its stages.

        `name`: the writer of its commits.

        A candidate ends its leases if the log does not answer, or `readers` are lost, for the lifetime of a lease.
        """
        guard, leader = ClockGuard(self.inputs, self.clock), self.leader
        elections = {stage.name: self.candidate(stage.name, name, guard) for stage in stages}
        return StageLeases(
            elections,
            guard,
            renew_interval=leader.renew_interval,
            is_answered=lambda: not (writer.is_silent_for(leader.ttl) or readers.are_lost_for(leader.ttl)),
        )

    def candidate(self, stage: str, name: str, guard: ClockGuard | None = None) -> LeaderElection:
        """Return a candidate for the lease of a stage. `name`: the name of the process."""
        return LeaderElection(
            self.projections,
            guard or ClockGuard(self.inputs, self.clock),
            key=lease_of(stage),
            holder=name,
            ttl=self.leader.ttl,
            renew_interval=self.leader.renew_interval,
        )

    async def leave(
        self,
        loop: CommitLoop,
        leases: StageLeases,
        running: "asyncio.Task[None]",
        electing: "asyncio.Task[None]",
    ) -> None:
        """End the terms of this process in the log, and free its leases.

        Without an answer, they end by themselves.

        `running`, `electing`: the tasks of the loop, which may have failed, and of the leases.
        """
        leaving = asyncio.ensure_future(loop.leave())
        ending = asyncio.ensure_future(self.clock.sleep(min(self.leader.ttl, self.finish_within)))
        await asyncio.wait((leaving, ending, running), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((electing, ending), return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, ending, electing):
            task.cancel()
        await leases.release()
