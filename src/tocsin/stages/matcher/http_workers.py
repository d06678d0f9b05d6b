"""The workers over HTTP that the matcher knows by their fetches and claims."""

from collections import defaultdict
from typing import Final

from ...domain.task_board import NO_AGENT, TaskBoard
from ...domain.task_fetch import Fetch
from ...engine.outside_workers import OutsideName, OutsideWorkers
from ...ports import Clock, Projections
from .fetches import Fetches
from .operator_decisions import OperatorDecisions

MAX_CLAIMS: Final = 100_000
"""The number of claims whose holders are remembered."""


class HttpWorkers:
    """Shows who fetches, and which claims each worker holds."""

    def __init__(
        self,
        projections: Projections,
        clock: Clock,
        board: TaskBoard,
        fetches: Fetches,
        decisions: OperatorDecisions,
    ) -> None:
        self._workers = OutsideWorkers("http", projections, clock, decisions.state_over_http)
        self._decisions = decisions
        self._board = board
        self._fetches = fetches
        self._holders: dict[tuple[str, int], OutsideName] = {}
        """The holders of claims by scope and sequence; those of ended claims are forgotten at the next look."""

    def note_claim(self, scope: str, sequence: int, identity: str, worker: str) -> None:
        """Note who holds a claim."""
        if len(self._holders) >= MAX_CLAIMS:
            self._forget_ended()
        if len(self._holders) < MAX_CLAIMS:
            self._holders[scope, sequence] = OutsideName(identity, worker)

    def hear(self, fetch: Fetch) -> None:
        """Note who sent a fetch."""
        if fetch.count:
            self._workers.hear(OutsideName(fetch.identity, fetch.worker), fetch.queues, fetch.functions)

    def may_take_tasks(self, fetch: Fetch) -> bool:
        """Return whether operators let the sender of a fetch take tasks."""
        return self._decisions.serves_over_http(OutsideName(fetch.identity, fetch.worker))

    async def show(self) -> None:
        """Show the workers that fetch, wait, or hold claims."""
        if not self._workers.is_due:
            return
        for waiting in self._fetches:
            self.hear(waiting.fetch)
        self._forget_ended()
        held: dict[OutsideName, list[str]] = defaultdict(list)
        for claim in self._board.claims_of(NO_AGENT):
            if (name := self._holders.get((claim.task.scope, claim.sequence))) is not None:
                task = claim.task
                is_known = self._workers.knows(name)
                self._workers.hear(name, () if is_known else (task.queue,), () if is_known else (task.function,))
                held[name].append(task.name)
        await self._workers.show(held)

    def _forget_ended(self) -> None:
        open_claims = {(claim.task.scope, claim.sequence) for claim in self._board.claims_of(NO_AGENT)}
        self._holders = {claim: name for claim, name in self._holders.items() if claim in open_claims}
