"""The ends of claims that no agent works at."""

from collections.abc import Sequence
from typing import Final

from ... import subjects, telemetry
from ...domain import execution
from ...domain.events import LeaseTimer, ReleasedReason
from ...domain.execution import Phase
from ...domain.task_board import AgentClaim, TaskBoard
from ...ports import Clock, EventLog

REFUSAL_S: Final = 60.0
"""How long an agent does not get a step again that it handed back."""
MAX_RELEASED: Final = 10_000
"""The number of claims of which the matcher remembers that it requested their end."""

_log = telemetry.get_logger("tocsin.matcher")


class Releases:
    """Requests the end of claims, and keeps tasks from agents that handed them back."""

    def __init__(self, log: EventLog, board: TaskBoard, clock: Clock) -> None:
        self._log = log
        self._board = board
        self._clock = clock
        self._refusals: dict[tuple[str, str, str], float] = {}
        self.requested: dict[int, None] = {}
        """The sequences of the claims whose end was requested, oldest first."""

    def apply_refusals(self) -> None:
        """Keep tasks from agents that handed them back a short time ago."""
        if not self._refusals:
            return
        now = self._clock.monotonic()
        refusing: dict[tuple[str, str], set[str]] = {}
        for (scope, step, agent_id), until in tuple(self._refusals.items()):
            agents = refusing.setdefault((scope, step), set())
            if until > now:
                agents.add(agent_id)
            else:
                del self._refusals[scope, step, agent_id]
        for (scope, step), agents in refusing.items():
            self._board.refuse(scope, step, frozenset(agents))

    async def still_open(self, claims: Sequence[AgentClaim]) -> list[AgentClaim]:
        """Return the claims that the log still has, and withdraw the others.

        A report or an end may have been missed, for example while no matcher ran.
        """
        if not claims:
            return []
        scopes = tuple(dict.fromkeys(claim.task.scope for claim in claims))
        loaded = dict(zip(scopes, (await self._log.load_each(*scopes)).facts, strict=True))
        found: list[AgentClaim] = []
        for claim in claims:
            facts = loaded[claim.task.scope]
            if facts and facts[-1].sequence < claim.sequence:
                continue  # a lagging replica answered
            if not facts and await self._log.tail(claim.task.scope):
                continue
            state = execution.fold(facts)
            step = state.steps.get(claim.task.step)
            is_open = step is not None and step.phase is Phase.STARTED and step.claim == claim.sequence
            if is_open and not state.is_over:
                found.append(claim)
            else:
                self._board.withdraw(claim.task)
        return found

    async def release(self, claim: AgentClaim, reason: ReleasedReason, *, is_refused: bool = False) -> None:
        """Send the lease keeper a request to end a claim, once.

        It decides, because a report may be stored.
        """
        task = claim.task
        if is_refused:
            self._refusals[task.scope, task.step, claim.agent_id] = self._clock.monotonic() + REFUSAL_S
        if claim.sequence in self.requested:
            return
        _, job, execution_id, _ = task.scope.split(".")
        timer = LeaseTimer(
            job=subjects.name(job),
            execution_id=execution_id,
            step=task.step,
            attempt=task.attempt,
            delivery=claim.delivery,
            task=task.sequence,
            reason=reason,
        )
        message_id = f"{execution_id}:{task.step}:{task.attempt}:{claim.sequence}:{reason}"
        await self._log.publish(subjects.subject_of(timer), timer, message_id=message_id)
        self.requested[claim.sequence] = None
        while len(self.requested) > MAX_RELEASED:
            del self.requested[next(iter(self.requested))]
        _log.info("claim ends", action="claim-ends", reason=reason, agent_id=claim.agent_id, execution_id=execution_id)
