"""Some fixed schedules of faults.

`.ci/run --full` plays thousands, of every focus; `python -m tests.simulation --seeds 10000` plays as many as needed.
"""

import json
import os
import subprocess
import sys
from typing import Final, get_args

import pytest

from .__main__ import told
from .focus import (
    ACKNOWLEDGED_FROM,
    DEPENDENT_FROM,
    DIVIDED_FROM,
    DRAINED_FROM,
    FORGED_FROM,
    LED_FROM,
    OPERATED_FROM,
    PRIORITIZED_FROM,
    focus_of,
)
from .simulation import Engine, engine_of, play

TOGETHER: Final = 7
SCHEDULES: Final = (0, *(pytest.param(first, marks=pytest.mark.full) for first in range(7, 140, TOGETHER)))
LAYOUTS: Final = tuple(
    pytest.param(engine, marks=pytest.mark.slow if engine == "separate" else ()) for engine in get_args(Engine)
)
SOME: Final = 2
PATIENCE_S: Final = 600
"""Of each of two processes on a busy machine."""
PLAY: Final = """
import json, sys
from tests.simulation.simulation import play
print(json.dumps([play(seed, engine).digest for seed, engine in json.loads(sys.argv[1])]))
"""


@pytest.mark.parametrize(
    "focus", ["deliveries", "wakes", "overlaps", "bridge", "letters", "leases", "repetitions", "agents"]
)
def test_rare_situations_are_played_often(focus: str) -> None:
    """For example: a worker pauses, the recoverer ends its attempt, the retry is dispatched, and the first worker's success counts."""
    seeds = [seed for seed in range(600) if focus_of(seed).name.startswith(focus)]
    failed = [told(result) for result in map(play, seeds[-SOME:]) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    ("first", "number"),
    [
        pytest.param(OPERATED_FROM, 2, id="operators are obeyed"),
        pytest.param(DEPENDENT_FROM, 4, id="executions wait for other jobs"),
        pytest.param(FORGED_FROM, 4, id="forged reports have no effect"),
        pytest.param(PRIORITIZED_FROM, 2, id="priorities decide"),
        pytest.param(DRAINED_FROM, 2, id="drained agents get nothing"),
        pytest.param(LED_FROM, 4, id="the leader alone gets its tasks"),
        pytest.param(DIVIDED_FROM, 4, id="shards have one owner"),
        pytest.param(ACKNOWLEDGED_FROM, 4, id="agents acknowledge"),
    ],
)
def test_rule_of_a_focus_holds_under_any_fault(first: int, number: int) -> None:
    failed = [told(result) for result in map(play, range(first, first + number)) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("first", SCHEDULES)
def test_guarantees_hold_under_any_fault(first: int) -> None:
    failed = [told(result) for result in map(play, range(first, first + TOGETHER)) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("engine", LAYOUTS)
def test_guarantees_hold_in_each_layout(engine: Engine) -> None:
    results = (play(seed, engine) for seed in range(7, 14))
    failed = [told(result) for result in results if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_queue_is_paused_again_after_a_snapshot() -> None:
    assert "all well" in told(play(1_000_002, "separate"))


def test_undone_owner_and_outdated_claim_hold_nothing_up() -> None:
    """A matcher learned an owner that was not stored, and a refused claim rested on an event less than the board."""
    assert "all well" in told(play(7_500_004, "fused"))


def test_seeds_share_all_layouts() -> None:
    assert {engine_of(seed) for seed in range(30)} == set(get_args(Engine))


@pytest.mark.timeout(PATIENCE_S)
def test_seed_plays_the_same_schedule_in_every_process() -> None:
    """Otherwise failures could not be repeated. The order of sets, object addresses and the time of day must not matter."""
    seeds = [(1, "fused"), (23, "fused"), (14, "mixed"), (21, "separate")]
    here = [play(seed, engine).digest for seed, engine in seeds]  # type: ignore[arg-type]
    assert len(set(here)) == len(seeds)
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PLAY, json.dumps(seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=500)
    assert json.loads(done.stdout) == here
