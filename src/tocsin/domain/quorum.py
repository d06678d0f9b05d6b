"""The acknowledgements of agents for which an execution waits (scratchbird, QUORUM_REQUIRED).

An execution is proposed to enabled agents. With enough acknowledgements it may run; otherwise it is proposed again, and skipped
after the last proposal. The state is folded from the execution's own scope. An acknowledgement repeats the sequence of its proposal, so
one for an earlier proposal changes nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from .agent import agent_key
from .events import Acknowledged, ExecutionFact, Message, Proposed, QuorumRule, QuorumSettled, Recorded


class Quorum(msgspec.Struct, frozen=True):
    """The newest proposal of an execution, and the agents (`<name>.<id>`) that acknowledged it."""

    proposal: Recorded[Proposed] | None = None
    acknowledged: frozenset[str] = frozenset()
    settled: QuorumSettled | None = None

    def is_reached(self, more: int = 0) -> bool:
        """Return whether the newest proposal has enough acknowledgements, with `more` to be stored."""
        return self.proposal is not None and len(self.acknowledged) + more >= self.proposal.message.needed

    def unheard(self) -> tuple[str, ...]:
        """Return the agents of the proposal that have not acknowledged it."""
        agents = () if self.proposal is None else self.proposal.message.agents
        return tuple(agent for agent in agents if agent not in self.acknowledged)


@dataclass(frozen=True, slots=True)
class Standing:
    """The acknowledgements of agents that an execution has and needs."""

    received: int
    needed: int
    agents: int
    """The number of agents that the newest proposal names."""
    proposal: int
    """The number of the newest proposal; 0: it was not proposed yet."""
    proposals: int
    """The number of proposals after which the execution is skipped."""

    def __str__(self) -> str:
        """Return a phrase such as `1 of 3 (proposal 2 of 4, to 5 agents)`."""
        if not self.proposal:
            return f"none yet of {self.needed}"
        agents = "1 agent" if self.agents == 1 else f"{self.agents} agents"
        return f"{self.received} of {self.needed} (proposal {self.proposal} of {self.proposals}, to {agents})"


def standing(state: Quorum, rule: QuorumRule) -> Standing:
    """Return how many acknowledgements an execution has."""
    fact = None if state.proposal is None else state.proposal.message
    return Standing(
        received=len(state.acknowledged),
        needed=rule.acknowledgements if fact is None else fact.needed,
        agents=0 if fact is None else len(fact.agents),
        proposal=0 if fact is None else fact.attempt,
        proposals=rule.max_attempts,
    )


initial: Final = Quorum()


def evolve(state: Quorum, recorded: Recorded[Message]) -> Quorum:
    """Return the state after an event; an event that does not fit changes nothing."""
    match recorded.message:
        case Proposed() as fact:
            return Quorum(Recorded(fact, recorded.subject, recorded.sequence, recorded.time))
        case Acknowledged() as fact:
            agent, proposal = agent_key(fact.name, fact.agent_id), state.proposal
            if proposal is None or fact.proposal != proposal.sequence or agent not in proposal.message.agents:
                return state
            return msgspec.structs.replace(state, acknowledged=state.acknowledged | {agent})
        case QuorumSettled() as fact:
            return msgspec.structs.replace(state, settled=fact)
        case _:
            return state


def needed(rule: QuorumRule, agents: int) -> int:
    """Return how many of some agents must acknowledge, which is at least a majority."""
    return max(rule.acknowledgements, agents // 2 + 1)


class Proposal(msgspec.Struct, frozen=True):
    """The execution to propose, and its rule."""

    job: str
    execution_id: str
    rule: QuorumRule


def gather(
    state: Quorum, of: Proposal, heard: Collection[str], candidates: Sequence[str], *, is_late: bool
) -> list[ExecutionFact]:
    """Propose an execution, store the acknowledgements that were heard, or end its wait.

    `state` is not settled yet. `heard`: the agents that acknowledged the newest proposal. `candidates`: the agents to name now, if it is
    proposed. `is_late`: the time for answers to the newest proposal is over.
    """
    if state.settled is not None:
        return []
    if state.proposal is None:
        return [_propose(of, 1, candidates)]
    agents = [agent for agent in state.unheard() if agent in heard]
    events: list[ExecutionFact] = [_acknowledge(of, state.proposal, agent) for agent in agents]
    attempt = state.proposal.message.attempt
    if state.is_reached(len(agents)):
        return [*events, settle(of, "reached", attempt)]
    if not is_late:
        return events
    if attempt >= of.rule.max_attempts:
        return [*events, settle(of, "no_quorum", attempt)]
    return [*events, _propose(of, attempt + 1, candidates)]


def settle(of: Proposal, outcome: Literal["reached", "no_quorum", "queue_full"], attempt: int = 0) -> QuorumSettled:
    """Return the end of the wait of an execution."""
    return QuorumSettled(job=of.job, execution_id=of.execution_id, outcome=outcome, attempt=attempt)


def _propose(of: Proposal, attempt: int, candidates: Sequence[str]) -> Proposed:
    return Proposed(
        job=of.job,
        execution_id=of.execution_id,
        attempt=attempt,
        agents=tuple(candidates),
        needed=needed(of.rule, len(candidates)),
    )


def _acknowledge(of: Proposal, proposal: Recorded[Proposed], agent: str) -> Acknowledged:
    name, _, agent_id = agent.partition(".")
    return Acknowledged(
        job=of.job,
        execution_id=of.execution_id,
        attempt=proposal.message.attempt,
        proposal=proposal.sequence,
        name=name,
        agent_id=agent_id,
    )
