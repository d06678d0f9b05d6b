"""The simulation catches bugs: some mutations of the table fail schedules that are otherwise clean.

`python -m tests.simulation --mutations --seeds 5000` tries all of them.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .mutation import Mutation, made
from .mutations import CAUGHT_BY_TESTS, FOCUSED, FOUND_BY_ONE_RULE, MUTATIONS, judged, seeds_of
from .simulation import play

SCHEDULES = range(120)  # an early seed catches each; which seed depends on every change of the stages
CAUGHT = (
    "append behind the last message of the log, of any writer",
    "fold a copy of a commit again",
    "forget a key when a commit is undone",
    "send effects before the commit is stored",
    *(
        pytest.param(name, marks=pytest.mark.full)
        for name in (
            "believe a leader of the stream that lags",
            "undo no positions",
            "answer proposals before the commit is stored",
            "lose the rest of a cascade that is cut",
            "let executions leave before each stage took their end",
            "fire by the clock of the machine",
            "fire what was named while the job was paused",
            "make an id of the moment",
            "make one id of two triggers",
            "expire a lock without proof",
            "release the lock when a step ends",
            "let in the newest instead of the earliest",
            "guess the fencing token",
            "dispatch again what was dispatched",
            "dispatch a step with one dependency missing",
            "be done when the first step is",
            "cancel no step behind a failure",
            "try once more than allowed",
            "go on after the last worker that may be lost",
            "move the recorder's place without the rows",
        )
    ),
)


MINOR = (
    "take a request to replay twice",
    "take a report of a worker that lost the lease",
    "take an answer to what was never handed over",
    "take an answer for the attempt that is current",
    "keep the executions of purged tasks",
    "assign what is disabled",
    "fetch beyond limits",
    "use no token of a rate",
    "count the silence of a released step from its request",
)
"""Bugs that only `--mutations` tries: for some of them hundreds of schedules are played."""
COINCIDENCES = tuple(name for name in FOCUSED if name not in {*MINOR, *FOUND_BY_ONE_RULE})
MANY = 460
PATIENCE_S = 600
"""Many schedules are computed until one catches the bug; a busy machine takes several times as long."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_bug_of_the_table_can_be_made(mutation: Mutation) -> None:
    with made(mutation):
        pass


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught(name: str) -> None:
    verdict = judged(name, SCHEDULES)
    assert verdict.violation is not None


@pytest.mark.full
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("name", COINCIDENCES)
def test_bug_behind_a_coincidence_is_caught(name: str) -> None:
    assert judged(name, seeds_of(name, number=MANY)).violation is not None


@pytest.mark.full
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("name", FOUND_BY_ONE_RULE)
def test_bug_is_found_by_its_rule_alone(name: str) -> None:
    verdict = judged(name, seeds_of(name, number=MANY))
    assert verdict.seed is not None
    with made(next(mutation for mutation in MUTATIONS if mutation.name == name)):
        rules = {violation.partition(":")[0] for violation in play(verdict.seed).violations}
    assert rules == {FOUND_BY_ONE_RULE[name]}


@pytest.mark.timeout(PATIENCE_S)
def test_each_bug_behind_another_guard_is_caught() -> None:
    tests = sorted(CAUGHT_BY_TESTS.values())
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "tests.simulation.mutated", "-rA", *tests],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
        text=True,
    )
    failed = re.findall(r"^FAILED (\S+)", run.stdout, re.MULTILINE)
    assert sorted(failed) == tests, run.stdout
    assert "Failed: Timeout" not in run.stdout, run.stdout


@pytest.mark.timeout(PATIENCE_S)
def test_stage_state_without_an_event_is_caught() -> None:
    violation = judged("let a stage keep a state of its own", range(40), "fused").violation
    assert violation is not None
    assert violation.startswith("AGAIN: ")


def test_a_bug_is_gone_behind_its_block() -> None:
    verdict = judged("fold a copy of a commit again", SCHEDULES)
    assert verdict.seed is not None
    assert play(verdict.seed, "mixed").violations == ()
