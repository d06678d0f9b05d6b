"""Rules about executions that agents acknowledge, judged by the log and by what the agents said."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from tests.stored_events import StoredEvents
from tocsin.domain.events import (
    Acknowledged,
    AgentRegistered,
    ExecutionFact,
    Planned,
    Proposed,
    QuorumRule,
    QuorumSettled,
    Recorded,
)

from .cast import Surroundings

CLOCK_ERROR: Final = timedelta(seconds=0.5)
"""The greatest error of a leader's estimate of the log's time."""
LATEST: Final = timedelta(seconds=40)
"""How long after its time a wait may end, with every pause and change of leaders."""

Facts: TypeAlias = Sequence[Recorded[ExecutionFact]]


def broken_quorums(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each acknowledgement that no agent gave, and each proposal that waited too short or too long."""
    registered: dict[str, Recorded[AgentRegistered]] = {}
    for recorded in everything.facts(AgentRegistered):
        registered.setdefault(f"{recorded.message.name}.{recorded.message.agent_id}", recorded)
    for execution_id, facts in everything.executions.items():
        rule = next((r.message.plan.quorum for r in facts if isinstance(r.message, Planned)), None)
        if rule is None:
            continue
        for wrong in (*_answers(facts, around), *_waits(facts, rule), *_names(facts, registered)):
            yield f"QUORUM: {execution_id} {wrong}"


def _answers(facts: Facts, around: Surroundings) -> Iterator[str]:
    """Yield each acknowledgement that the hold lists of its agent do not have."""
    for recorded in facts:
        fact = recorded.message
        if isinstance(fact, Acknowledged):
            said = around.hall.acknowledged.get((fact.name, fact.agent_id), frozenset[int]())
            if fact.proposal not in said:
                yield f"has an acknowledgement of proposal {fact.attempt} that {fact.name} did not give"


def _waits(facts: Facts, rule: QuorumRule) -> Iterator[str]:
    """Yield each proposal whose time for answers was too short or too long."""
    limit, newest = timedelta(seconds=rule.timeout), None
    for recorded in facts:
        fact = recorded.message
        is_lapse = isinstance(fact, Proposed) or (isinstance(fact, QuorumSettled) and fact.outcome == "no_quorum")
        if newest is not None and is_lapse and recorded.time - newest.time < limit - CLOCK_ERROR:
            yield f"was given up {recorded.time - newest.time} after a proposal, and {limit} was allowed"
        if newest is not None and recorded.time - newest.time > limit + LATEST:
            yield f"waited {recorded.time - newest.time} for answers, and {limit} was allowed"
        if isinstance(fact, Proposed):
            newest = recorded
        elif not isinstance(fact, Acknowledged):
            newest = None


def _names(facts: Facts, registered: "dict[str, Recorded[AgentRegistered]]") -> Iterator[str]:
    """Yield each agent of a proposal that was not registered before."""
    unknown: defaultdict[int, list[str]] = defaultdict(list)
    for recorded in facts:
        fact = recorded.message
        if isinstance(fact, Proposed):
            for agent in fact.agents:
                if agent not in registered or registered[agent].time > recorded.time:
                    unknown[fact.attempt].append(agent)
    for attempt, agents in unknown.items():
        yield f"names agents in proposal {attempt} that were not registered: {agents}"
