"""The audit judges the events of agents."""

from collections.abc import Sequence

import pytest

from tests.domain.given import ID, NOON
from tocsin import subjects
from tocsin.domain.events import (
    AgentDrainStarted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentRegistered,
    AgentSwitched,
    Recorded,
)
from tocsin.services.audit import Report, audit

REGISTERED = AgentRegistered(name="mail-1", agent_id=ID)
SILENT = AgentFellSilent(name="mail-1", agent_id=ID, silent_for=30)
ENDED = AgentEnded(name="mail-1", agent_id=ID)
DRAINED = AgentDrainStarted(name="mail-1", agent_id=ID)
FORGOTTEN = AgentForgotten(name="mail-1", agent_id=ID)
SWITCHED = AgentSwitched(name="mail-1", enabled=False)


def judged(facts: Sequence[AgentFact]) -> Report:
    return audit(Recorded(fact, subjects.subject_of(fact), n, NOON) for n, fact in enumerate(facts, 1))


LIVES: list[list[AgentFact]] = [
    [REGISTERED, REGISTERED, ENDED, FORGOTTEN],
    [REGISTERED, SILENT, REGISTERED, SILENT, FORGOTTEN, REGISTERED],
    [REGISTERED, DRAINED, SILENT, REGISTERED, ENDED],
    [SWITCHED, REGISTERED, SWITCHED, SWITCHED],
]
IMPOSSIBLE: list[list[AgentFact]] = [
    [SILENT],
    [ENDED],
    [DRAINED],
    [FORGOTTEN],
    [REGISTERED, FORGOTTEN],
    [REGISTERED, ENDED, REGISTERED],
    [REGISTERED, ENDED, SILENT],
    [REGISTERED, SILENT, SILENT],
    [REGISTERED, SILENT, DRAINED],
]


@pytest.mark.parametrize("life", LIVES, ids=range(len(LIVES)))
def test_possible_life_is_clean(life: list[AgentFact]) -> None:
    assert judged(life).is_clean


@pytest.mark.parametrize("life", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_impossible_life_is_a_violation(life: list[AgentFact]) -> None:
    report = judged(life)
    assert not report.is_clean
    assert report.violations[0].entity == f"agent mail-1 {ID}"


def test_log_that_is_read_in_part_is_clean() -> None:
    fact = Recorded(SILENT, subjects.subject_of(SILENT), 9, NOON)
    assert audit([fact], since=NOON).is_clean
