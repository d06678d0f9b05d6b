"""Queues whose tasks the matcher assigns: real processes, a real nats-server."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.stored_events import StoredEvents
from tests.system.lost_workers import lose
from tests.system.processes import Site, site
from tests.system.test_shutdown import IN_ORDER, ended
from tests.system.usurper import REFUSED
from tests.system.worker_process import noted
from tocsin import bootstrap
from tocsin.domain.events import Completed, Dispatched, Failed, Released, RetryScheduled, Started

MATCHED: Final = {"default": {"transport": "matched"}}
RUNS: Final = 12
BURST: Final = 300
LARGE_BURST: Final = 3_000
LEFT: Final = "tests.system.team_process:left"
RIGHT: Final = "tests.system.team_process:right"


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path, queues=MATCHED) as it:
        await it.apply(
            {"name": "to-the-left", "function": "left/load", "overlap_policy": "allow"},
            {"name": "to-the-right", "function": "right/load", "overlap_policy": "allow"},
        )
        yield it


def runs(tocsin: Site) -> dict[str, int]:
    """Return how often the handlers of each execution were called."""
    if not tocsin.runs.exists():
        return {}
    return {execution: number for (execution, _, _), number in noted(tocsin.runs).items()}


async def over(tocsin: Site, **jobs: int) -> None:
    wanted = {name.replace("_", "-"): number for name, number in jobs.items()}

    async def are_over() -> bool:
        return await tocsin.ends() == wanted

    await tocsin.until(are_over)


async def completed_at_the_first_attempt(tocsin: Site) -> StoredEvents:
    everything: StoredEvents = await tocsin.checked()
    assert len(everything.facts(Completed)) == len(everything.executions)
    assert everything.facts(RetryScheduled) == []
    assert {r.message.attempt for r in everything.facts(Started)} == {1}
    assert everything.facts(Failed) == []
    return everything


async def test_each_worker_gets_tasks_of_its_functions(tocsin: Site) -> None:
    tocsin.start()
    left, right = tocsin.start_worker(LEFT), tocsin.start_worker(RIGHT)
    await tocsin.ready()
    for _ in range(RUNS):
        await tocsin.trigger("to-the-left")
        await tocsin.trigger("to-the-right")
    await over(tocsin, to_the_left=RUNS, to_the_right=RUNS)
    everything = await completed_at_the_first_attempt(tocsin)
    assert len(everything.facts(Started)) == 2 * RUNS
    assert everything.facts(Released) == []
    assert set(runs(tocsin).values()) == {1}
    assert not any("task-passed-on" in worker.said() for worker in (left, right))


async def test_absent_worker_delays_no_other(tocsin: Site) -> None:
    tocsin.start()
    left = tocsin.start_worker(LEFT)
    tocsin.start_worker(RIGHT)
    await tocsin.ready()
    left.send(signal.SIGTERM)
    assert await ended(tocsin, left) == IN_ORDER
    for _ in range(RUNS):
        await tocsin.trigger("to-the-left")
        await tocsin.trigger("to-the-right")
    await over(tocsin, to_the_right=RUNS)
    tocsin.start_worker(LEFT)
    await over(tocsin, to_the_left=RUNS, to_the_right=RUNS)
    everything = await completed_at_the_first_attempt(tocsin)
    assert len(everything.facts(Dispatched)) == 2 * RUNS
    assert set(runs(tocsin).values()) == {1}


async def test_rolling_restart_of_all_workers_spends_no_attempt(tocsin: Site) -> None:
    tocsin.start()
    workers = [tocsin.start_worker(LEFT), tocsin.start_worker(LEFT)]
    await tocsin.ready()
    for _ in range(RUNS):
        await tocsin.trigger("to-the-left")
    for worker in workers:

        async def has_one(before: int = len(runs(tocsin))) -> bool:
            return len(runs(tocsin)) > before

        await tocsin.until(has_one)
        worker.send(signal.SIGTERM)
        assert await ended(tocsin, worker) == IN_ORDER
        tocsin.start_worker(LEFT)
    await over(tocsin, to_the_left=RUNS)
    await completed_at_the_first_attempt(tocsin)
    assert set(runs(tocsin).values()) == {1}


@pytest.mark.parametrize(
    ("burst", "kills"),
    [
        (BURST, (50, 150)),
        pytest.param(LARGE_BURST, (500, 1_500), marks=[pytest.mark.full, pytest.mark.timeout(900)]),
    ],
)
async def test_killed_matcher_loses_and_doubles_nothing(burst: int, kills: tuple[int, int], tocsin: Site) -> None:
    tocsin.start(*(stage for stage in bootstrap.STAGE_NAMES if stage != "matcher"))
    matchers = [tocsin.start("matcher"), tocsin.start("matcher")]
    tocsin.start_worker(RIGHT)
    await tocsin.ready()
    for number in range(burst):
        await tocsin.trigger("to-the-right")
        if number in kills:
            killed = matchers[kills.index(number)]
            killed.kill()
            killed.start()
    await over(tocsin, to_the_right=burst)
    await completed_at_the_first_attempt(tocsin)
    assert set(runs(tocsin).values()) == {1}
    assert len(runs(tocsin)) == burst


async def test_two_leaders_claim_each_task_once(tocsin: Site) -> None:
    tocsin.start(*(stage for stage in bootstrap.STAGE_NAMES if stage != "matcher"))
    leaders = [tocsin.start("matcher", module=["tests.system.usurper"]) for _ in range(2)]
    tocsin.start_worker(RIGHT)
    await tocsin.ready()
    for _ in range(BURST):
        await tocsin.trigger("to-the-right")
    await over(tocsin, to_the_right=BURST)
    everything = await completed_at_the_first_attempt(tocsin)
    assert len(everything.facts(Started)) == BURST
    assert set(runs(tocsin).values()) == {1}
    assert any(REFUSED in leader.said() for leader in leaders)


async def test_killed_worker_loses_only_what_it_held(tocsin: Site) -> None:
    """`lost_workers` repeats this, and measures how soon the tasks run again."""
    tocsin.start()
    losses = await lose(tocsin, 1, random.Random(1))  # noqa: S311 - chooses a moment, guards nothing
    assert (losses.problems, losses.kills) == ([], 1)
    everything = await completed_at_the_first_attempt(tocsin)
    lost = {r.message.execution_id for r in everything.facts(Released)}
    assert len(lost) == losses.ran_again > 0
    assert {execution for execution, times in runs(tocsin).items() if times == 2} == lost


LONG_S: Final = 5.0
AWAY_S: Final = 60.0


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_busy_worker_gets_all_of_its_tasks(tocsin: Site) -> None:
    """The worker of the other team has many free slots, and not the function."""
    await tocsin.apply(
        {"name": "slowly", "function": "left/slowly", "input": {"seconds": LONG_S}, "overlap_policy": "allow"}
    )
    tocsin.start()
    tocsin.start_worker(LEFT)
    tocsin.start_worker(RIGHT)
    await tocsin.ready()
    for _ in range(RUNS):
        await tocsin.trigger("slowly")
    await over(tocsin, slowly=RUNS)
    await completed_at_the_first_attempt(tocsin)
    assert set(runs(tocsin).values()) == {1}


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_tasks_wait_a_minute_for_their_worker(tocsin: Site) -> None:
    tocsin.start()
    left = tocsin.start_worker(LEFT)
    tocsin.start_worker(RIGHT)
    await tocsin.ready()
    left.send(signal.SIGTERM)
    assert await ended(tocsin, left) == IN_ORDER
    for _ in range(RUNS):
        await tocsin.trigger("to-the-left")
        await tocsin.trigger("to-the-right")
    await asyncio.sleep(AWAY_S)
    assert await tocsin.ends() == {"to-the-right": RUNS}
    tocsin.start_worker(LEFT)
    await over(tocsin, to_the_left=RUNS, to_the_right=RUNS)
    everything = await completed_at_the_first_attempt(tocsin)
    assert len(everything.facts(Dispatched)) == 2 * RUNS
    assert set(runs(tocsin).values()) == {1}
