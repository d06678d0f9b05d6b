"""Claims in the names of workers, and the ends of agents' claims."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from ... import subjects, telemetry
from ...domain import execution
from ...domain.agent import agent_key
from ...domain.events import (
    Advanced,
    Cancelled,
    Completed,
    Death,
    Exhausted,
    Failed,
    Failure,
    Message,
    PastHoldUp,
    Recorded,
    Released,
    ReleasedReason,
    RetryScheduled,
    Started,
)
from ...domain.execution import Phase
from ...domain.open_task import OpenTask
from ...domain.task_board import NO_AGENT, AgentClaim, TaskBoard
from ...engine.report_lists import report_of_stage
from ...ports import Append, Clock, EventLog, OutdatedState, Written
from .agents import HeardAgents
from .operator_decisions import OperatorDecisions
from .owners import Owners
from .queue_rates import QueueRates, Rated


class StoredClaim(NamedTuple):
    """A claim that is stored, and its task."""

    started: Started
    claim: AgentClaim


Assigned: TypeAlias = Sequence[tuple[OpenTask, Started]]
"""Reserved tasks and their claims."""
LEAST_HOLD_UP_S: Final = 0.001
"""Shorter hold-ups are not recorded."""
TRIES: Final = 3
"""Writes of the claims of one execution in a row; other writers may be faster at each."""


class Claims:
    """Stores claims of reserved tasks."""

    def __init__(
        self,
        log: EventLog,
        board: TaskBoard,
        agents: HeardAgents,
        rates: QueueRates,
        decisions: OperatorDecisions,
        owners: Owners,
    ) -> None:
        self._log = log
        self._board = board
        self._agents = agents
        self._rates = rates
        self._decisions = decisions
        self.owners = owners

    async def store(self, assigned: Assigned) -> list[StoredClaim]:
        """Store claims in one write, and return those that are stored.

        Tasks without a claim are open again, also those beyond the rate of their queue or their group. A refused claim is decided again with the
        newer events of its execution.

        Raises:
            LogUnavailable: it is unknown whether any is stored.
        """
        by_scope: dict[str, list[tuple[OpenTask, Started]]] = {}
        try:
            wanted = Counter(name for task, _ in assigned for name in _rated(task))
            granted = await self._rates.take(wanted)
            self._agents.read()
            self._board.let_start(
                {name: 0 for name in granted if not isinstance(name, str) and granted[name] < wanted[name]}
            )
            for task, started in assigned:
                if not self._may_be_claimed(task, started):
                    continue
                limited = [name for name in _rated(task) if name in granted]
                if any(granted[name] < 1 for name in limited):
                    continue
                for name in limited:
                    granted[name] -= 1
                by_scope.setdefault(task.scope, []).append((task, started))
            return await self._store(by_scope)
        finally:
            for task, _ in reversed(assigned):
                self._board.put_back(task)  # what is claimed is not reserved any more

    async def _store(self, by_scope: Mapping[str, Assigned]) -> list[StoredClaim]:
        expected = {scope: self._board.newest(scope) for scope in by_scope}
        writes = [Append(tuple(started for _, started in tasks), expected[scope]) for scope, tasks in by_scope.items()]
        claims: list[StoredClaim] = []
        error: Exception | None = None
        for (scope, tasks), written in zip(by_scope.items(), await self._log.write(writes), strict=True):
            claims += self._confirmed(tasks, written)
            if isinstance(written.error, OutdatedState):
                claims += await self._claim_after_newer_events(scope, tasks[len(written.sequences) :])
            elif written.error is not None:
                error = written.error
        if error is not None and not claims:
            raise error
        return claims

    def _confirmed(self, tasks: Assigned, written: Written) -> list[StoredClaim]:
        return [
            claim
            for (task, started), number in zip(tasks, written.sequences, strict=False)
            for claim in self._confirm(task, started, number)
        ]

    def _confirm(self, task: OpenTask, started: Started, sequence: int) -> list[StoredClaim]:
        """Note a stored claim; nothing: an event ended it meanwhile."""
        known = self._board.claim_of(task.scope, task.step)
        is_known = known is not None and known.sequence == sequence
        if not is_known and not self._board.is_reserved(task):
            return []
        return [
            StoredClaim(
                started,
                self._board.confirm(
                    task,
                    agent_of(started.worker, started.agent) or NO_AGENT,
                    sequence=sequence,
                    epoch=started.epoch,
                ),
            )
        ]

    async def _claim_after_newer_events(self, scope: str, tasks: Assigned) -> list[StoredClaim]:
        """Learn the events that the board lacks, and claim what still needs a worker.

        Tasks that are not claimed here are tried again with the next event.
        """
        claims: list[StoredClaim] = []
        for _ in range(TRIES):
            known, facts = self._board.newest(scope), await self._log.load(scope)
            if not facts:  # the execution is over, and has left the fold
                for task, _ in tasks:
                    self._board.withdraw(task)
                break
            for recorded in facts:
                if recorded.sequence > known:  # none, if the board learned them meanwhile
                    learn_event(self._board, scope, recorded)
            self._board.see(scope, facts[-1].sequence)
            self._agents.read()
            tasks = [(task, started) for task, started in tasks if self._may_be_claimed(task, started)]
            if not tasks:
                break
            [written] = await self._log.write([Append(tuple(started for _, started in tasks), facts[-1].sequence)])
            claims += self._confirmed(tasks, written)
            tasks = tasks[len(written.sequences) :]
            if not isinstance(written.error, OutdatedState):
                break
        return claims

    def _may_be_claimed(self, task: OpenTask, started: Started) -> bool:
        """Return whether no event, operator, other owner or agent has withdrawn a task."""
        is_chosen = self._board.is_reserved(task) and self.owners.permits(task, started)
        return is_chosen and self._takes_tasks(started) and self._decisions.permits(task, started)

    def _takes_tasks(self, started: Started) -> bool:
        """Return whether an agent still takes tasks; it may drain since it was chosen."""
        key = agent_of(started.worker, started.agent)
        heard = None if key is None else self._agents.get(key)
        return heard is None or heard.takes_tasks


def _rated(task: OpenTask) -> list[Rated]:
    """Return by what the start of a task is counted."""
    return [task.queue] if task.rate is None else [task.queue, task.rate]


def learn_event(board: TaskBoard, scope: str, recorded: Recorded[Message]) -> None:
    """Apply an event that was read before it is followed.

    A task is opened only when it is followed.
    """
    fact, sequence = recorded.message, recorded.sequence
    if isinstance(fact, Started):
        learn_claim(board, scope, fact, sequence)
    else:
        learn_end(board, scope, fact, sequence)


def learn_claim(board: TaskBoard, scope: str, fact: Started, sequence: int) -> None:
    """Apply a claim."""
    board.claim(
        scope,
        fact.step,
        fact.attempt,
        delivery=fact.delivery,
        sequence=sequence,
        agent=agent_of(fact.worker, fact.agent),
        epoch=fact.epoch,
    )


def learn_end(board: TaskBoard, scope: str, fact: Message, sequence: int) -> None:
    """Apply an event after which a task needs no worker; any other changes nothing."""
    if isinstance(fact, Completed | Failed | Cancelled):
        board.end_execution(scope, is_completed=isinstance(fact, Completed))
    elif isinstance(fact, Released):
        was_lost = fact.reason == "lease_over"
        board.release(scope, fact.step, fact.attempt, delivery=fact.delivery, sequence=sequence, was_lost=was_lost)
    elif isinstance(fact, RetryScheduled | Advanced | Exhausted):
        board.end_step(scope, fact.step, sequence=sequence)


def agent_of(worker: str, agent_id: str | None) -> str | None:
    """Return the key of the agent of a claim; None: its worker is no agent."""
    return None if agent_id is None else agent_key(worker, agent_id)


def claim_of(
    task: OpenTask,
    worker: str,
    *,
    agent: str | None = None,
    lease: float | None = None,
    holder: str | None = None,
    fetch: str | None = None,
    epoch: int | None = None,
) -> Started:
    """Return the claim of a task."""
    _, job, execution_id, _ = task.scope.split(".")
    return Started(
        job=subjects.name(job),
        execution_id=execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=task.delivery,
        worker=worker,
        agent=agent,
        lease=lease,
        holder=holder,
        fetch=fetch,
        epoch=epoch,
        held_up=tuple(
            PastHoldUp(cause=cause, seconds=round(seconds, 3))
            for cause, seconds in task.held_up.items()
            if seconds >= LEAST_HOLD_UP_S
        ),
    )


REFUSAL_S: Final = 60.0
"""How long an agent does not get a step again that it handed back."""
MAX_RELEASED: Final = 10_000
"""The number of claims of which the matcher remembers that it requested their end."""

_log = telemetry.get_logger("tocsin.matcher")


class Releases:
    """Requests the end of claims, and keeps tasks from agents that handed them back."""

    def __init__(self, log: EventLog, board: TaskBoard, clock: Clock, key: bytes) -> None:
        """`key`: the key of the installation."""
        self._log = log
        self._board = board
        self._clock = clock
        self._key = key
        self._refusals: dict[tuple[str, str, str], float] = {}
        self.requested: dict[tuple[str, int], None] = {}
        """The scopes and sequences of the claims whose end was requested, oldest first."""

    def apply_refusals(self) -> None:
        """Keep tasks from agents that handed them back a short time ago."""
        if not self._refusals:
            return
        now = self._clock.monotonic()
        refusing: dict[tuple[str, str], set[str]] = {}
        for (scope, step, agent), until in tuple(self._refusals.items()):
            agents = refusing.setdefault((scope, step), set())
            if until > now:
                agents.add(agent)
            else:
                del self._refusals[scope, step, agent]
        for (scope, step), agents in refusing.items():
            self._board.refuse(scope, step, frozenset(agents))

    async def still_open(self, claims: Sequence[AgentClaim]) -> list[AgentClaim]:
        """Return the claims that the log still has, and withdraw the others.

        A report or an end may have been missed, for example while no matcher ran.
        """
        if not claims:
            return []
        scopes = tuple(dict.fromkeys(claim.task.scope for claim in claims))
        facts_by_scope = dict(zip(scopes, (await self._log.load_each(*scopes)).facts, strict=True))
        open_claims: list[AgentClaim] = []
        for claim in claims:
            facts = facts_by_scope[claim.task.scope]
            state = execution.fold(facts)
            step = state.steps.get(claim.task.step)
            is_open = step is not None and step.phase is Phase.STARTED and step.claim == claim.sequence
            if is_open and not state.is_over:
                open_claims.append(claim)
            else:
                self._board.withdraw(claim.task)
        return open_claims

    async def release(
        self,
        claim: AgentClaim,
        reason: ReleasedReason,
        *,
        is_refused: bool = False,
        last_heartbeat: datetime | None = None,
    ) -> None:
        """Report the end of a claim to the retrier, once.

        It decides after the reports that are stored. `last_heartbeat`: when the lost agent was heard last (UTC).
        """
        task = claim.task
        if is_refused:
            self._refusals[task.scope, task.step, claim.agent] = self._clock.monotonic() + REFUSAL_S
        if (task.scope, claim.sequence) in self.requested:
            return
        _, token, execution_id, _ = task.scope.split(".")
        death = Death(agent=claim.agent, at=self._clock.now(), last_heartbeat=last_heartbeat)
        send = report_of_stage(
            self._key,
            subjects.MATCHER,
            Failure(type=reason, deaths=() if reason == "handed_back" else (death,)),
            job=(job := subjects.name(token)),
            execution_id=execution_id,
            step=task.step,
            attempt=task.attempt,
            delivery=claim.delivery,
            claim=claim.sequence,
        )
        await self._log.publish(send.subject, send.message, message_id=send.message_id)
        self.requested[task.scope, claim.sequence] = None
        while len(self.requested) > MAX_RELEASED:
            del self.requested[next(iter(self.requested))]
        _log.info(
            "claim ends",
            action="claim-ends",
            reason=reason,
            agent=claim.agent,
            job=job,
            execution_id=execution_id,
            step=task.step,
            attempt=task.attempt,
        )
