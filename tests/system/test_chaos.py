"""Chaos, the short one; `python -m tests.system.chaos` is the long one."""

from pathlib import Path

import pytest

from tests.system.chaos.running import chaos

SECONDS = 25
SEED = 49
"""Its plan kills and pauses each kind of process, and takes the cluster's majority away."""


@pytest.mark.slow
async def test_log_is_complete_after_any_fault(tmp_path: Path) -> None:
    outcome = await chaos(tmp_path, seconds=SECONDS, seed=SEED, rate=4, tell=print)
    assert outcome.is_clean, "\n".join(outcome.wrong)
    assert outcome.figures["killed"].keys() == outcome.figures["paused"].keys() == {"stage", "worker", "node"}
    assert outcome.figures["executions"].keys() == {"completed", "failed", "cancelled", "skipped"}
