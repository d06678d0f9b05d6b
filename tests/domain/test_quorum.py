"""Acknowledgements: any history of answers and delays ends as its events say, and never with too few."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, recorded
from tests.properties import examples
from tocsin.domain import quorum
from tocsin.domain.events import Acknowledged, ExecutionFact, Proposed, QuorumRule, QuorumSettled
from tocsin.domain.quorum import Proposal, Quorum, gather, needed, standing

AGENTS = tuple(f"agent-{number}.01890f3e-0000-7000-8000-{number:012}" for number in range(6))


def proposal(acknowledgements: int = 2, attempts: int = 2) -> Proposal:
    return Proposal(JOB, ID, QuorumRule(acknowledgements=acknowledgements, timeout=10, max_attempts=attempts))


@pytest.mark.parametrize(
    ("acknowledgements", "agents", "enough"),
    [(1, 0, 1), (1, 1, 1), (1, 2, 2), (1, 3, 2), (2, 3, 2), (3, 3, 3), (5, 3, 5), (1, 100, 51)],
)
def test_majority_is_needed(acknowledgements: int, agents: int, enough: int) -> None:
    assert needed(proposal(acknowledgements).rule, agents) == enough


def test_standing_is_said_in_words() -> None:
    rule = proposal().rule
    assert str(standing(quorum.initial, rule)) == "none yet of 2"
    state = fold([Proposed(job=JOB, execution_id=ID, attempt=1, agents=AGENTS[:1], needed=2)])
    assert str(standing(state, rule)) == "0 of 2 (proposal 1 of 2, to 1 agent)"


def fold(facts: list[ExecutionFact]) -> Quorum:
    state = quorum.initial
    for fact in recorded(facts):
        state = quorum.evolve(state, fact)
    return state


@dataclass
class History:
    """The events of an execution, as decisions add them."""

    of: Proposal
    facts: list[ExecutionFact] = field(default_factory=list)

    def decide(self, heard: set[str], candidates: list[str], *, is_late: bool) -> list[ExecutionFact]:
        events = gather(fold(self.facts), self.of, heard, candidates, is_late=is_late)
        self.facts += events
        return events


ROUNDS = st.lists(
    st.tuples(st.sets(st.sampled_from(AGENTS)), st.lists(st.sampled_from(AGENTS), unique=True), st.booleans()),
    max_size=12,
)


@settings(max_examples=examples(300))
@given(ROUNDS, st.integers(1, 4), st.integers(1, 3))
def test_any_history_keeps_its_promises(
    rounds: list[tuple[set[str], list[str], bool]], acknowledgements: int, attempts: int
) -> None:
    history = History(proposal(acknowledgements, attempts))
    for heard, candidates, is_late in rounds:
        history.decide(heard, candidates, is_late=is_late)
        is_new = isinstance(history.facts[-1], Proposed)
        again = history.decide(set() if is_new else heard, candidates, is_late=False)
        assert not again, "a decision that is repeated adds nothing"
    newest, acknowledged = None, set[str]()
    for number, fact in enumerate(history.facts, 1):
        match fact:
            case Proposed():
                assert fact.attempt == (newest.attempt if newest else 0) + 1 <= attempts
                assert fact.needed >= acknowledgements
                assert 2 * fact.needed > len(fact.agents)
                newest, acknowledged = fact, set()
            case Acknowledged():
                agent = f"{fact.name}.{fact.agent_id}"
                assert newest is not None
                assert agent in newest.agents
                assert agent not in acknowledged
                acknowledged.add(agent)
            case QuorumSettled():
                assert number == len(history.facts)
                assert newest is not None
                is_reached = len(acknowledged) >= newest.needed
                assert (fact.outcome == "reached") is is_reached
                assert is_reached or newest.attempt == attempts
            case _:
                raise AssertionError(fact)


@given(st.sets(st.sampled_from(AGENTS)))
def test_answers_to_another_proposal_change_nothing(agents: set[str]) -> None:
    first = Proposed(job=JOB, execution_id=ID, attempt=1, agents=AGENTS, needed=4)
    answers = [
        Acknowledged(job=JOB, execution_id=ID, attempt=1, proposal=1, name=name, agent_id=agent_id)
        for name, _, agent_id in (agent.partition(".") for agent in sorted(agents))
    ]
    assert fold([first, *answers]).acknowledged == agents
    assert not fold([first, *answers, first.changed(attempt=2), *answers]).acknowledged
