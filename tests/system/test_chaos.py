"""Chaos, the short one; `python -m tests.system.chaos` is the long one."""

from pathlib import Path

import pytest

from tests.system.chaos.attackers import Tally
from tests.system.chaos.running import chaos

SECONDS = 25
SEED = 49
"""Its plan kills and pauses each kind of process, and takes the cluster's majority away."""


@pytest.mark.slow
@pytest.mark.full
async def test_log_is_complete_after_any_fault(tmp_path: Path) -> None:
    outcome = await chaos(tmp_path, seconds=SECONDS, seed=SEED, rate=4, tell=print)
    assert outcome.is_clean, "\n".join(outcome.wrong)
    assert outcome.figures["killed"].keys() == outcome.figures["paused"].keys() == {"stage", "worker", "node"}
    assert outcome.figures["executions"].keys() == {"completed", "failed", "cancelled", "skipped"}


@pytest.mark.full
@pytest.mark.slow
async def test_log_is_complete_after_faults_under_attack(tmp_path: Path) -> None:
    outcome = await chaos(tmp_path, seconds=SECONDS, seed=SEED, rate=4, servers=1, attack=True, tell=print)
    assert outcome.is_clean, "\n".join(outcome.wrong)
    assert outcome.figures["killed"].keys() == {"stage", "worker", "node"}
    assert outcome.figures["triggers of outsiders accepted"] > 0


@pytest.mark.parametrize(
    ("tally", "problem"),
    [
        (Tally(), "none was sent"),
        (Tally(refused=3, cut_off=3, last="Authorization Violation"), "none was sent"),
        (Tally(sent=3, refused=3), "all 3 were refused"),
        (Tally(is_forbidden=True, sent=3, refused=2), "only 2 of 3 were refused"),
    ],
)
def test_attack_that_proves_nothing_is_reported(tally: Tally, problem: str) -> None:
    assert (tally.problem() or "").startswith(problem)


@pytest.mark.parametrize("tally", [Tally(sent=3, refused=2), Tally(is_forbidden=True, sent=3, refused=4)])
def test_attack_that_was_answered_is_no_problem(tally: Tally) -> None:
    assert tally.problem() is None
