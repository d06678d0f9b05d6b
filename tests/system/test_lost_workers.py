"""A handler that kills its worker with SIGKILL, beside tasks that do not: real processes, a real nats-server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.processes import Program, Site, site
from tests.system.worker_process import noted
from tocsin.domain.events import Completed, DeadLettered, Failed, Started

INNOCENT_S = 20.0


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path, queues={"default": {"transport": "matched"}}) as it:
        yield it


async def supervise(program: Program) -> None:
    """Start a program again whenever it ends."""
    while True:
        if program.ended is not None:
            program.start()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("max_deaths", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.timeout(400)
async def test_deadly_task_fails_and_its_neighbours_complete(tocsin: Site, max_deaths: int) -> None:
    shared = {"overlap_policy": "allow", "timeout": 120, "recovery": {"max_deaths": max_deaths}}
    await tocsin.apply(
        {"name": "deadly", "function": "deadly", "dead_letter": True, "retry": {"max_attempts": 2}, **shared},
        {"name": "innocent", "function": "slow", "input": {"seconds": INNOCENT_S}, **shared},
    )
    tocsin.start()
    supervisors = [asyncio.create_task(supervise(tocsin.start_worker())) for _ in range(2)]
    try:
        await tocsin.ready()
        for _ in range(4):
            await tocsin.trigger("innocent")
        await tocsin.trigger("deadly")

        async def are_over() -> bool:
            return await tocsin.ends() == {"deadly": 1, "innocent": 4}

        await tocsin.until(are_over)
    finally:
        for supervisor in supervisors:
            supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await supervisor
    everything = await tocsin.checked()
    assert {fact.message.job for fact in everything.facts(Completed)} == {"innocent"}
    [failed], [letter] = everything.facts(Failed), everything.facts(DeadLettered)
    error = failed.message.error
    assert error is not None
    assert (error.type, letter.message.last_error) == ("worker_lost", error)
    claims = [r.message for r in everything.facts(Started) if r.message.job == "deadly"]
    assert [death.agent for death in error.deaths] == [f"{claim.worker}.{claim.agent}" for claim in claims]
    assert len({death.agent for death in error.deaths}) == max_deaths
    assert all(death.last_heartbeat is not None and death.last_heartbeat < death.at for death in error.deaths)
    [times] = [times for (run, _, _), times in noted(tocsin.runs).items() if run == failed.message.execution_id]
    assert times == max_deaths
