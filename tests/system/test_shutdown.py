"""SIGTERM to stages and workers: work is finished or handed back, leases are released.

Except on a cluster, no acknowledgement timeout and no lease ends within these tests: work that was not handed over would stay where it
was.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from faststream.nats import NatsBroker
from structlog.testing import capture_logs

from tests.system.clustered import clustered
from tests.system.processes import GROUPS, Program, Site, site
from tests.system.stuck import STUCK
from tests.system.test_kill import everything_is_as_it_should_be, progress, work
from tests.system.worker_process import noted
from tocsin import bootstrap
from tocsin.domain.events import Cancelled, Completed, Dispatched, Due, Passed, Started


def over_after(seconds: int) -> dict[str, Any]:
    """Settings with which leases and acknowledgement waits last so long."""
    return {
        "leader": {"ttl": seconds, "renew_interval": 1},
        "stages": {"ack_wait": seconds},
        "worker": {"ack_wait": seconds, "shutdown_timeout": 10},
    }


FOR_EVER: Final = 600
NOTHING_IS_OVER: Final = over_after(FOR_EVER)
ALL_IS_OVER_ONCE: Final = over_after(30)
TOGETHER: Final = ((),)
"""All stages in one process, which needs less of the machine."""
IN_ORDER: Final = 0
INTERRUPTED: Final = 5


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path, **NOTHING_IS_OVER) as it:
        yield it


async def ended(tocsin: Site, program: Program) -> int:
    """The exit of a stopping program."""

    async def ending() -> list[int]:
        return [] if program.ended is None else [program.ended]

    [code] = await tocsin.until(ending)
    tocsin.programs.remove(program)
    return code


async def says(tocsin: Site, program: Program, action: str) -> None:
    async def has_said() -> bool:
        return f'"{action}"' in program.said()

    await tocsin.until(has_said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups", [pytest.param(TOGETHER, id="together"), pytest.param(GROUPS, marks=pytest.mark.full, id="groups")]
)
async def test_rolling_restart_under_load_loses_and_doubles_nothing(
    groups: Sequence[Sequence[str]], tocsin: Site
) -> None:
    await two_copies(tocsin, groups)
    async with work(tocsin):
        await restarted_one_by_one(tocsin)
    await everything_was_done_once(tocsin)


@pytest.mark.full
@pytest.mark.slow
async def test_so_it_is_on_a_cluster(tmp_path: Path) -> None:
    """On busy nodes, elections and messages lost by the old leader prolong the waits."""
    async with clustered(tmp_path, **ALL_IS_OVER_ONCE) as (tocsin, _):
        await two_copies(tocsin, TOGETHER)
        async with work(tocsin):
            await restarted_one_by_one(tocsin)
        await everything_was_done_once(tocsin)


@pytest.mark.slow
@pytest.mark.full
async def test_rolling_restart_of_the_cluster_loses_nothing(tmp_path: Path) -> None:
    """A message whose acknowledgement was lost with the server may be handled twice."""
    async with clustered(tmp_path) as (tocsin, cluster):
        await two_copies(tocsin, TOGETHER)
        async with work(tocsin):
            for node in cluster.nodes:
                await progress(tocsin)
                await asyncio.to_thread(node.restart)
                await asyncio.to_thread(cluster.await_complete)
            await progress(tocsin)
        await everything_is_as_it_should_be(tocsin)


async def two_copies(tocsin: Site, groups: Sequence[Sequence[str]]) -> None:
    """Everything runs twice: the stages of a group in one process."""
    for stages in groups:
        tocsin.start(*stages)
        tocsin.start(*stages)
    tocsin.start_worker()
    tocsin.start_worker()
    await tocsin.ready()


async def restarted_one_by_one(tocsin: Site) -> None:
    """Each process is stopped and its successor started while the others work."""
    for program in list(tocsin.programs):
        await progress(tocsin)
        program.send(signal.SIGTERM)
        assert await ended(tocsin, program) == IN_ORDER, program.said()
        tocsin.programs.append(program)
        program.start()
        await tocsin.ready()
    await progress(tocsin)


async def everything_was_done_once(tocsin: Site) -> None:
    everything = await everything_is_as_it_should_be(tocsin)
    runs = noted(tocsin.runs)
    assert set(runs.values()) == {1}  # a claim that a stopping worker handed back has no run
    without_run = {execution_id for execution_id, _, _ in everything.runs().keys() - runs.keys()}
    assert without_run <= {fact.message.execution_id for fact in everything.facts(Cancelled)}
    assert runs.keys() <= everything.runs().keys()


async def test_stopping_ticker_hands_its_leadership_over(tocsin: Site) -> None:
    """The lease outlasts all waits of this test: without its release, nothing would fire."""
    tickers = [tocsin.start("ticker"), tocsin.start("ticker")]
    await tocsin.ready()
    await tocsin.apply({"name": "tick", "schedule": "* * * * * *", "function": "work", "catch_up": "all"})
    await fired(tocsin, 2)
    leader = next(ticker for ticker in tickers if "leadership-gained" in ticker.said())
    leader.send(signal.SIGTERM)
    assert await ended(tocsin, leader) == IN_ORDER
    assert "leadership-released" in leader.said()
    before = len(await tocsin.facts("ledger.tick.due", Due))
    await fired(tocsin, before + 3)

    dues = [recorded.message.scheduled_time for recorded in await tocsin.facts("ledger.tick.due", Due)]
    assert len({due.replace(microsecond=0) for due in dues}) == len(dues)
    assert (dues[-1] - dues[0]).total_seconds() == len(dues) - 1
    assert not await tocsin.facts("ledger.tick.>", Passed)


async def fired(tocsin: Site, number: int) -> None:
    async def have() -> bool:
        return len(await tocsin.facts("ledger.tick.due", Due)) >= number

    await tocsin.until(have)


async def test_stage_that_cannot_finish_hands_messages_back(nats_url: str, tmp_path: Path) -> None:
    more = {**NOTHING_IS_OVER, "worker": {"ack_wait": FOR_EVER, "shutdown_timeout": 1}}
    async with site(nats_url, tmp_path, **more) as tocsin:
        stuck = tocsin.start("planner", module=["tests.system.stuck", "admitted"])
        await tocsin.ready()
        await tocsin.apply({"name": "free", "function": "work", "overlap_policy": "allow"})
        await tocsin.trigger("free")
        await says(tocsin, stuck, STUCK)
        stuck.send(signal.SIGTERM)
        assert await ended(tocsin, stuck) == IN_ORDER
        tocsin.start("planner")
        await tocsin.ended("free", Dispatched)


async def test_second_signal_stops_a_stage_immediately(tocsin: Site) -> None:
    stuck = tocsin.start("planner", module=["tests.system.stuck", "admitted"])
    await tocsin.ready()
    await tocsin.apply({"name": "free", "function": "work", "overlap_policy": "allow"})
    await tocsin.trigger("free")
    await says(tocsin, stuck, STUCK)
    stuck.send(signal.SIGTERM)
    await says(tocsin, stuck, "stages-stopping")
    stuck.send(signal.SIGTERM)
    assert await ended(tocsin, stuck) == INTERRUPTED
    assert "stages-stopped" not in stuck.said()


async def test_signal_for_timezone_data_ends_no_process(tocsin: Site) -> None:
    programs = [tocsin.start("planner"), tocsin.start_worker()]
    await tocsin.ready()
    for program in programs:
        program.send(signal.SIGUSR1)
        await says(tocsin, program, "timezones-read")
    assert [program.ended for program in programs] == [None, None]


async def busy_worker(tocsin: Site, seconds: float) -> Program:
    """A worker in the middle of a long task."""
    tocsin.start("planner", "dag-advancer", "retrier", "matcher")
    worker = tocsin.start_worker()
    await tocsin.ready()
    await tocsin.apply(
        {"name": "long", "function": "slow", "input": {"seconds": seconds}, "overlap_policy": "allow"},
    )
    await tocsin.trigger("long")

    async def is_busy() -> bool:
        return tocsin.runs.exists() and bool(noted(tocsin.runs))

    await tocsin.until(is_busy)
    return worker


async def test_stopping_worker_finishes_its_tasks_and_takes_none(tocsin: Site) -> None:
    worker = await busy_worker(tocsin, 3)
    worker.send(signal.SIGTERM)
    await says(tocsin, worker, "worker-stopping")
    await tocsin.trigger("long")
    assert await ended(tocsin, worker) == IN_ORDER
    assert len(await tocsin.of_executions("long", Completed)) == 1

    heir = tocsin.start_worker()
    await tocsin.ended("long", Completed, 2)
    assert heir.ended is None
    assert set(noted(tocsin.runs).values()) == {1}


async def test_a_worker_hands_back_what_takes_too_long(tocsin: Site) -> None:
    """`worker_process` gives its handlers 5 seconds."""
    worker = await busy_worker(tocsin, 20)
    worker.send(signal.SIGTERM)
    assert await ended(tocsin, worker) == IN_ORDER
    tocsin.start_worker()
    claims = await tocsin.ended("long", Started, 2)
    assert [claim.delivery for claim in claims] == [1, 2]
    assert len({claim.worker for claim in claims}) == 2


async def test_second_signal_stops_a_worker_immediately(tocsin: Site) -> None:
    worker = await busy_worker(tocsin, FOR_EVER)
    worker.send(signal.SIGTERM)
    await says(tocsin, worker, "worker-stopping")
    worker.send(signal.SIGTERM)
    assert await ended(tocsin, worker) == INTERRUPTED
    assert "handler-stopped" not in worker.said()


async def test_stages_stop_while_the_client_is_connecting(tocsin: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-py swallows a cancellation at some of its steps; a process stopped at that moment would run forever."""
    connects = asyncio.Event()

    async def start(_: NatsBroker) -> None:
        connects.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    monkeypatch.setattr(NatsBroker, "start", start)
    running = asyncio.create_task(bootstrap.run_stages(tocsin.installation, ["ticker"]))
    await connects.wait()
    running.cancel()
    async with asyncio.timeout(tocsin.patience):
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("running_too", [(), ("registrar",)])
async def test_stages_without_their_settings_are_reported(tocsin: Site, running_too: tuple[str, ...]) -> None:
    """Warn only if nothing else runs: a process that does nothing is a mistake."""
    names, ready = ("mq_bridge", "notary", *running_too), asyncio.Event()
    with capture_logs() as said:
        running = asyncio.create_task(bootstrap.run_stages(tocsin.installation, names, ready=ready))
        async with asyncio.timeout(tocsin.patience):
            await ready.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    idle = {one["stage"]: one for one in said if one.get("action") == "stage-not-installed"}
    assert idle.keys() == {"mq_bridge", "notary"}
    assert idle["notary"]["needs"] == "`notary.key`"
    assert {one["log_level"] for one in idle.values()} == {"debug" if running_too else "warning"}
    [started] = [one for one in said if one.get("action") == "stages-started"]
    assert started["stages"] == [*running_too]
