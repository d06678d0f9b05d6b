"""Workers of one queue with different functions: the right worker gets each task, and no attempt is spent."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.stored_events import StoredEvents
from tests.system.processes import Site, site
from tests.system.test_shutdown import IN_ORDER, ended
from tests.system.worker_process import noted
from tocsin.domain.events import Completed, Report, RetryScheduled, Started

RUNS: Final = 12
LEFT: Final = "tests.system.team_process:left"
RIGHT: Final = "tests.system.team_process:right"


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path) as it:
        it.start()
        await it.apply(
            {"name": "to-the-left", "function": "left/load", "overlap_policy": "allow"},
            {"name": "to-the-right", "function": "right/load", "overlap_policy": "allow"},
        )
        yield it


async def all_of_them_completed(tocsin: Site) -> None:
    everything: StoredEvents = await tocsin.checked()
    assert len(everything.facts(Completed)) == len(everything.executions)
    assert everything.facts(RetryScheduled) == []
    assert [r.message.attempt for r in everything.facts(Started)] == [1] * len(everything.executions)
    assert {r.message.outcome for r in everything.facts(Report)} == {"completed"}
    assert set(noted(tocsin.runs).values()) == {1}


async def test_worker_with_the_handler_is_busy(tocsin: Site) -> None:
    tocsin.start_worker(LEFT)
    tocsin.start_worker(RIGHT)
    await tocsin.ready()
    for _ in range(RUNS):
        await tocsin.trigger("to-the-left")
        await tocsin.trigger("to-the-right")

    async def are_over() -> bool:
        return await tocsin.ends() == {"to-the-left": RUNS, "to-the-right": RUNS}

    await tocsin.until(are_over)
    await all_of_them_completed(tocsin)


async def test_worker_with_the_handler_is_away_and_returns(tocsin: Site) -> None:
    left = tocsin.start_worker(LEFT)
    right = tocsin.start_worker(RIGHT)
    await tocsin.ready()
    left.send(signal.SIGTERM)
    assert await ended(tocsin, left) == IN_ORDER
    for _ in range(RUNS):
        await tocsin.trigger("to-the-left")

    async def were_handed_back_often() -> bool:
        """More often than a worker once tried."""
        return '"delivery":8' in right.said().replace(" ", "")

    await tocsin.until(were_handed_back_often)
    tocsin.start_worker(LEFT)

    async def are_over() -> bool:
        return await tocsin.ends() == {"to-the-left": RUNS}

    await tocsin.until(are_over)
    await all_of_them_completed(tocsin)
