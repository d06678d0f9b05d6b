"""Some fixed schedules of faults.

`.ci/run --full` plays thousands, of every focus; `python -m tests.simulation --seeds 10000` plays as many as needed.
"""

import json
import os
import subprocess
import sys

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
from .simulation import play

TOGETHER = 20
SOME = 4
OPERATED = 4
DEPENDENT = 10
FORGED = 10
RANKED = 4
LED = 10
DIVIDED = 6
ACKNOWLEDGED = 8
SCHEDULES = (0, *(pytest.param(first, marks=pytest.mark.full) for first in (20, 40, 60, 80)))
PLAY = """
import json, sys
from tests.simulation.simulation import play
print(json.dumps([play(seed).digest for seed in json.loads(sys.argv[1])]))
"""


@pytest.mark.parametrize(
    "focus", ["deliveries", "wakes", "overlaps", "bridge", "letters", "leases", "archive", "agents"]
)
def test_rare_situations_are_played_often(focus: str) -> None:
    """For example: a worker pauses, the recoverer ends its attempt, the retry is dispatched, and the first worker's success counts."""
    seeds = [seed for seed in range(600) if focus_of(seed).name.startswith(focus)]
    failed = [told(result) for result in map(play, seeds[-SOME:]) if result.violations]
    assert not failed, "\n".join(failed)


def test_operators_are_obeyed_under_any_fault() -> None:
    seeds = range(OPERATED_FROM, OPERATED_FROM + OPERATED)
    failed = [told(result) for result in map(play, seeds) if result.violations]
    assert not failed, "\n".join(failed)


def test_executions_wait_for_other_jobs_under_any_fault() -> None:
    seeds = range(DEPENDENT_FROM, DEPENDENT_FROM + DEPENDENT)
    failed = [told(result) for result in map(play, seeds) if result.violations]
    assert not failed, "\n".join(failed)


def test_forged_reports_have_no_effect_under_any_fault() -> None:
    seeds = range(FORGED_FROM, FORGED_FROM + FORGED)
    failed = [told(result) for result in map(play, seeds) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("first", [PRIORITIZED_FROM, DRAINED_FROM], ids=["priorities", "drains"])
def test_choice_is_right_under_any_fault(first: int) -> None:
    failed = [told(result) for result in map(play, range(first, first + RANKED)) if result.violations]
    assert not failed, "\n".join(failed)


def test_leader_alone_gets_its_tasks_under_any_fault() -> None:
    seeds = range(LED_FROM, LED_FROM + LED)
    failed = [told(result) for result in map(play, seeds) if result.violations]
    assert not failed, "\n".join(failed)


def test_shards_have_one_owner_under_any_fault() -> None:
    seeds = range(DIVIDED_FROM, DIVIDED_FROM + DIVIDED)
    failed = [told(result) for result in map(play, seeds) if result.violations]
    assert not failed, "\n".join(failed)


def test_agents_acknowledge_under_any_fault() -> None:
    seeds = range(ACKNOWLEDGED_FROM, ACKNOWLEDGED_FROM + ACKNOWLEDGED)
    failed = [told(result) for result in map(play, seeds) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("first", SCHEDULES)
def test_guarantees_hold_under_any_fault(first: int) -> None:
    failed = [told(result) for result in map(play, range(first, first + TOGETHER)) if result.violations]
    assert not failed, "\n".join(failed)


@pytest.mark.timeout(600)  # of each of two processes on a busy machine
def test_seed_plays_the_same_schedule_in_every_process() -> None:
    """Otherwise failures could not be repeated. The order of sets, object addresses and the time of day must not matter."""
    seeds = [1, 23, 40, 77]
    here = [play(seed).digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    for order in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PLAY, json.dumps(seeds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=250)
        assert json.loads(done.stdout) == here
