"""Acknowledgements: the audit judges proposals, answers and ends by the plan, and notices what is planted."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.domain.given import ID, JOB, NOON, plan, recorded
from tocsin.domain.events import (
    Acknowledged,
    Admitted,
    ExecutionFact,
    Planned,
    Proposed,
    QuorumRule,
    QuorumSettled,
    Skipped,
)
from tocsin.services.audit import audit

RULE = QuorumRule(acknowledgements=2, timeout=10, max_attempts=2)
PLAN = plan().changed(quorum=RULE)
PLANNED = Planned(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="api", plan=PLAN)
PROPOSED = Proposed(job=JOB, execution_id=ID, attempt=1, agents=("a.1", "b.2", "c.3"), needed=2)
AGAIN = PROPOSED.changed(attempt=2)
REACHED = QuorumSettled(job=JOB, execution_id=ID, outcome="reached", attempt=1)
GIVEN_UP = QuorumSettled(job=JOB, execution_id=ID, outcome="no_quorum", attempt=2)
ADMITTED = Admitted(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="api", plan=PLAN)
SKIPPED = Skipped(job=JOB, execution_id=ID, reason="no_quorum", scheduled_time=NOON, trigger="api", definition=1)


def by(agent: str, *, proposal: int = 2, attempt: int = 1) -> Acknowledged:
    name, _, agent_id = agent.partition(".")
    return Acknowledged(job=JOB, execution_id=ID, attempt=attempt, proposal=proposal, name=name, agent_id=agent_id)


def wrong(*facts: ExecutionFact) -> list[str]:
    """Violations that the audit finds in the wait."""
    return [violation.reason for violation in audit(recorded(list(facts))).violations if violation.invariant == "I6"]


GOOD: dict[str, tuple[ExecutionFact, ...]] = {
    "reached": (PLANNED, PROPOSED, by("a.1"), by("b.2"), REACHED, ADMITTED),
    "waits": (PLANNED, PROPOSED, by("a.1")),
    "given up": (PLANNED, PROPOSED, by("a.1"), AGAIN, GIVEN_UP, SKIPPED),
    "too many wait": (PLANNED, QuorumSettled(job=JOB, execution_id=ID, outcome="queue_full")),
}


@pytest.mark.parametrize("case", GOOD)
def test_right_history_is_clean(case: str) -> None:
    assert wrong(*GOOD[case]) == []


DEFECTS: dict[str, tuple[tuple[ExecutionFact, ...], str]] = {
    "admitted without a quorum": ((PLANNED, PROPOSED, by("a.1"), ADMITTED), "before enough agents"),
    "reached with too few": ((PLANNED, PROPOSED, by("a.1"), REACHED), "1 of 2 acknowledgements"),
    "reached without a proposal": ((PLANNED, REACHED), "0 of 1"),
    "answer of an agent without a proposal": ((PLANNED, PROPOSED, by("z.9")), "does not name this agent"),
    "answer to an earlier proposal": ((PLANNED, PROPOSED, AGAIN, by("a.1")), "another proposal"),
    "answer without a proposal": ((PLANNED, by("a.1")), "another proposal"),
    "answer after the end": ((PLANNED, PROPOSED, by("a.1"), by("b.2"), REACHED, by("c.3")), "had ended"),
    "proposal left out": ((PLANNED, AGAIN), "came after proposal 0"),
    "one proposal too many": (
        (PLANNED, PROPOSED, AGAIN, PROPOSED.changed(attempt=3)),
        "2 are allowed",
    ),
    "no majority": ((PLANNED, PROPOSED.changed(agents=("a.1", "b.2", "c.3", "d.4"))), "too few"),
    "fewer than the definition": ((PLANNED, PROPOSED.changed(needed=1, agents=("a.1",))), "too few"),
    "an agent twice": ((PLANNED, PROPOSED.changed(agents=("a.1", "a.1"))), "twice"),
    "given up early": ((PLANNED, PROPOSED, GIVEN_UP.changed(attempt=1)), "given up"),
    "given up with a quorum": (
        (PLANNED, PROPOSED, AGAIN, by("a.1", proposal=3, attempt=2), by("b.2", proposal=3, attempt=2), GIVEN_UP),
        "given up",
    ),
    "skipped without a decision": ((PLANNED, PROPOSED, SKIPPED), "no decision says so"),
}


@pytest.mark.parametrize("case", DEFECTS)
def test_planted_defect_is_found(case: str) -> None:
    facts, said = DEFECTS[case]
    assert any(said in reason for reason in wrong(*facts)), wrong(*facts)


def test_job_without_acknowledgements_has_none() -> None:
    bare: Callable[..., Any] = PLANNED.changed
    assert "it needs no acknowledgements" in wrong(bare(plan=plan()), PROPOSED)
