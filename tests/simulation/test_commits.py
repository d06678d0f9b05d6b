"""Fixed schedules over the log of commits: stages fused, separate, and in random processes.

`python -m tests.simulation --engine mixed --seeds 2000` plays as many as needed.
"""

import json
import os
import subprocess
import sys
from typing import Final, get_args

import pytest

from .__main__ import told
from .commit_mutations import COMMIT_MUTATIONS
from .mutations import Mutation, judged, made
from .simulation import Engine, Result, play

ENGINES: Final = tuple(
    pytest.param(engine, marks=pytest.mark.slow if engine == "separate" else ())
    for engine in get_args(Engine)
    if engine != "messages"
)
TOGETHER: Final = 7
SCHEDULES: Final = (0, 7, *(pytest.param(first, marks=pytest.mark.full) for first in range(14, 140, TOGETHER)))
OVERTAKEN: Final = "I3: its success was taken, and it is not done"
"""A failure that the lease keeper reports after a stored success may be decided before it: two stages take reports, each by its own place."""
PATIENCE_S: Final = 600
"""Schedules are computed until one catches a bug; a busy machine takes several times as long."""
PLAY: Final = """
import json, sys
from tests.simulation.simulation import play
print(json.dumps([play(seed, engine).digest for seed, engine in json.loads(sys.argv[1])]))
"""


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("first", SCHEDULES)
@pytest.mark.parametrize("engine", ENGINES)
def test_guarantees_hold_on_commits_under_any_fault(engine: Engine, first: int) -> None:
    results = (play(seed, engine) for seed in range(first, first + TOGETHER))
    failed = [told(result) for result in results if not _is_known(result)]
    assert not failed, "\n".join(failed)


def _is_known(result: Result) -> bool:
    """Return whether a schedule holds, but for what is known."""
    return all(violation.startswith(OVERTAKEN) for violation in result.violations)


@pytest.mark.timeout(PATIENCE_S)
def test_seed_plays_same_commit_schedule_in_every_process() -> None:
    seeds = [(1, "fused"), (14, "mixed"), (21, "separate")]
    here = [play(seed, engine).digest for seed, engine in seeds]  # type: ignore[arg-type]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PLAY, json.dumps(seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=500)
    assert json.loads(done.stdout) == here


@pytest.mark.parametrize("mutation", COMMIT_MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_bug_on_commits_can_be_made(mutation: Mutation) -> None:
    with made(mutation):
        pass


@pytest.mark.full
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("mutation", COMMIT_MUTATIONS, ids=lambda mutation: mutation.name)
def test_bug_on_commits_is_caught(mutation: Mutation) -> None:
    assert judged(mutation, range(200), "mixed").violation is not None


@pytest.mark.timeout(PATIENCE_S)
def test_stage_state_without_an_event_is_caught() -> None:
    [private] = [mutation for mutation in COMMIT_MUTATIONS if mutation.name == "let a stage keep a state of its own"]
    violation = judged(private, range(40), "fused").violation
    assert violation is not None
    assert violation.startswith("AGAIN: ")
