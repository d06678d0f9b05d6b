"""The log of commits decides what the present engine decides."""

import random

import pytest

from tests.commits.processes import NAMES
from tests.commits.scripts import Commits, Present, play, script

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
async def test_both_engines_decide_the_same(seed: int) -> None:
    expected = await play(script(seed), Present())
    assert await play(script(seed), Commits()) == expected


@pytest.mark.parametrize("seed", SEEDS[:10])
async def test_separate_stages_decide_the_same(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    names = chance.sample(NAMES, len(NAMES))
    cuts = sorted(chance.sample(range(1, len(names)), chance.randrange(len(names))))
    groups = [names[first:last] for first, last in zip([0, *cuts], [*cuts, len(names)], strict=True)]
    expected = await play(script(seed), Present())
    assert await play(script(seed), Commits(groups, cut=seed % 2 == 0, restarts=seed % 3 == 0)) == expected
