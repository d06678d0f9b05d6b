"""Recorded input scripts still lead to the recorded events of each key, in any layout of processes."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.commits.processes import NAMES
from tests.commits.scripts import Commits, play

SCRIPTS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("scripts.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
async def test_script_leads_to_the_recorded_events(number: int) -> None:
    recorded = SCRIPTS[number]
    assert await play(recorded["script"], Commits()) == recorded["decided"]


@pytest.mark.parametrize("number", range(10))
async def test_separate_stages_decide_the_same(number: int) -> None:
    recorded, chance = SCRIPTS[number], random.Random(number)  # noqa: S311
    names = chance.sample(NAMES, len(NAMES))
    cuts = sorted(chance.sample(range(1, len(names)), chance.randrange(len(names))))
    groups = [names[first:last] for first, last in zip([0, *cuts], [*cuts, len(names)], strict=True)]
    engine = Commits(groups, cut=number % 2 == 0, restarts=number % 3 == 0)
    assert await play(recorded["script"], engine) == recorded["decided"]
