"""Some schedules of trouble, always the same ones. `python -m tests.simulation --seeds 10000` plays as many as you like."""

import json
import os
import subprocess
import sys

import pytest

from .__main__ import told
from .focus import focus_of
from .simulation import play

TOGETHER = 20
SOME = 15
SCHEDULES = range(0, 180, TOGETHER)
PLAY = """
import json, sys
from tests.simulation.simulation import play
print(json.dumps([play(seed).digest for seed in json.loads(sys.argv[1])]))
"""


@pytest.mark.parametrize("focus", ["deliveries", "wakes", "overlaps", "bridge", "letters", "leases", "archive"])
def test_rare_situations_are_played_often(focus: str) -> None:
    """Such as: a worker stands still, the recoverer ends its attempt, the next one is dispatched; the first one's success counts."""
    seeds = [seed for seed in range(600) if focus_of(seed).name.startswith(focus)]
    failed = [told(result) for result in map(play, seeds[-SOME:]) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("first", SCHEDULES)
def test_guarantees_hold_under_any_fault(first: int) -> None:
    failed = [told(result) for result in map(play, range(first, first + TOGETHER)) if result.violations]
    assert not failed, "\n".join(failed)


def test_seed_plays_the_same_schedule_in_every_process() -> None:
    """Else a failure could not be looked at: whatever the order of sets, the addresses of objects, the time of day."""
    seeds = [1, 23, 40, 77]
    here = [play(seed).digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    for order in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PLAY, json.dumps(seeds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(done.stdout) == here
