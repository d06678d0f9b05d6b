"""The leader is killed repeatedly: each second fires once; `failover` measures how soon."""

import random
from pathlib import Path
from typing import Final

import pytest

from tests.system.clustered import clustered
from tests.system.failover import FAST, Failover
from tests.system.processes import site

TICKERS: Final = 5
MATCHERS: Final = 3
NODES: Final = 2
CHANCE: Final = random.Random(1)  # noqa: S311 - chooses moments, guards nothing


@pytest.mark.slow
async def test_killed_leading_ticker_loses_no_occurrence(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, leader=FAST) as tocsin:
        gaps = await Failover(tocsin, CHANCE).run("ticker", TICKERS)
    assert (gaps.lost, gaps.doubled, len(gaps.gaps)) == (0, 0, TICKERS)


@pytest.mark.slow
@pytest.mark.full
async def test_killed_leading_matcher_loses_no_start(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path) as tocsin:
        gaps = await Failover(tocsin, CHANCE).run("matcher", MATCHERS)
    assert (gaps.lost, gaps.doubled, len(gaps.gaps)) == (0, 0, MATCHERS)


@pytest.mark.full
@pytest.mark.slow
async def test_killed_ledger_leader_node_loses_no_occurrence(tmp_path: Path) -> None:
    async with clustered(tmp_path, leader=FAST) as (tocsin, cluster):
        gaps = await Failover(tocsin, CHANCE, cluster).run("node", NODES)
    assert (gaps.lost, gaps.doubled, len(gaps.gaps)) == (0, 0, NODES)
