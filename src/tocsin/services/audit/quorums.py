"""Acknowledgements of agents, judged by the proposals of an execution (I6)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ...domain.agent import agent_key
from ...domain.events import Acknowledged, Proposed, QuorumRule, QuorumSettled
from .execution_reports import Wrong

QuorumFact: TypeAlias = Proposed | Acknowledged | QuorumSettled


@dataclass(slots=True)
class QuorumLife:
    """The wait of one execution for acknowledgements."""

    proposal: Proposed | None = None
    sequence: int = 0
    """The sequence of the newest proposal."""
    agents: set[str] = field(default_factory=set)
    """The keys of the agents that acknowledged it."""
    settled: QuorumSettled | None = None

    @property
    def is_reached(self) -> bool:
        """Whether enough agents acknowledged the execution."""
        return self.settled is not None and self.settled.outcome == "reached"

    def take(self, fact: QuorumFact, sequence: int, rule: QuorumRule | None) -> Iterator[Wrong]:
        """Take the event of a sequence; yield the rules that it breaks.

        `rule`: that of the plan.
        """
        if rule is None:
            yield Wrong("I6", "it needs no acknowledgements")
            return
        if self.settled is not None:
            yield Wrong("I6", "its wait for acknowledgements had ended")
        match fact:
            case Proposed():
                yield from self._proposed(fact, rule)
                self.proposal, self.sequence, self.agents = fact, sequence, set()
            case Acknowledged():
                yield from self._acknowledged(fact)
            case QuorumSettled():
                yield from self._settled(fact, rule)
                self.settled = fact

    def _proposed(self, fact: Proposed, rule: QuorumRule) -> Iterator[Wrong]:
        before = 0 if self.proposal is None else self.proposal.attempt
        if fact.attempt != before + 1 or fact.attempt > rule.max_attempts:
            yield Wrong(
                "I6", f"proposal {fact.attempt} came after proposal {before}, and {rule.max_attempts} are allowed"
            )
        if len(set(fact.agents)) != len(fact.agents):
            yield Wrong("I6", f"proposal {fact.attempt} names an agent twice")
        if fact.needed < rule.acknowledgements or 2 * fact.needed <= len(fact.agents):
            yield Wrong("I6", f"proposal {fact.attempt} needs {fact.needed} acknowledgements, which is too few")

    def _acknowledged(self, fact: Acknowledged) -> Iterator[Wrong]:
        agent = agent_key(fact.name, fact.agent_id)
        if self.proposal is None or (fact.attempt, fact.proposal) != (self.proposal.attempt, self.sequence):
            yield Wrong("I6", f"{fact.name} acknowledged another proposal than the newest")
            return
        if agent not in self.proposal.agents:
            yield Wrong("I6", f"{fact.name} acknowledged it, and the proposal does not name this agent")
        if agent in self.agents:
            yield Wrong("I6", f"{fact.name} acknowledged it twice")
        self.agents.add(agent)

    def _settled(self, fact: QuorumSettled, rule: QuorumRule) -> Iterator[Wrong]:
        attempt, needed = (0, 1) if self.proposal is None else (self.proposal.attempt, self.proposal.needed)
        received = len(self.agents)
        if fact.outcome == "reached" and (self.proposal is None or received < needed):
            yield Wrong("I6", f"its quorum counts as reached with {received} of {needed} acknowledgements")
        if fact.outcome == "no_quorum" and (attempt < rule.max_attempts or received >= needed):
            yield Wrong(
                "I6", f"it was given up after proposal {attempt} of {rule.max_attempts}, {received} of {needed}"
            )
        if fact.outcome != "queue_full" and fact.attempt != attempt:
            yield Wrong("I6", f"its wait ended with proposal {fact.attempt}, and the newest is {attempt}")
