"""Sixteen shards: exactly sixteen runs, with real processes, also when some of them are killed."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.system.owners import SHARDS, WORKERS, Owners, prepare, runs
from tests.system.processes import Site, site
from tocsin.domain.events import Admitted, Completed, CronTriggered, FannedOut, OwnershipAssigned

PATIENCE_S: Final = 500
"""A killed worker is silent for 30 seconds, and a busy machine takes long to start processes."""
ROUNDS: Final = 3
CHANCE: Final = random.Random(1)  # noqa: S311 - chooses moments, guards nothing
SOON: Final = timedelta(seconds=20)


async def sixteen_runs(tocsin: Site) -> None:
    """Each shard has one execution, which completed once."""

    async def ended() -> bool:
        return (await tocsin.ends())["sweep"] == 1 + len(SHARDS)  # and the fan-out itself

    await tocsin.until(ended)
    everything = await tocsin.checked()
    [fanned] = [recorded.message for recorded in everything.facts(FannedOut)]
    assert fanned.shards == SHARDS
    admitted = [recorded.message for recorded in everything.facts(Admitted)]
    assert Counter(event.plan.shard for event in admitted) == Counter(SHARDS)
    completed = [recorded.message for recorded in everything.facts(Completed)]
    assert Counter(event.shard for event in completed) == Counter(SHARDS)
    assert {event.execution_id for event in completed} == {event.execution_id for event in admitted}
    code, shown = await tocsin.call("executions", "show", fanned.execution_id)
    assert (code, shown["status"], shown["fan_out"]["counts"]) == (0, "completed", {"completed": 16})
    await tocsin.history_agrees_with(everything)


@pytest.mark.timeout(PATIENCE_S)
async def test_instant_runs_once_on_each_shard(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        at = (datetime.now(UTC) + SOON).replace(microsecond=0)
        await prepare(tocsin, schedule=f"at {at.replace(tzinfo=None).isoformat()}")
        tocsin.start()
        tocsin.start_worker(WORKERS)
        tocsin.start_worker(WORKERS)
        await tocsin.ready()
        await sixteen_runs(tocsin)
        assert Counter(run[1] for run in runs(tocsin)) == Counter(SHARDS)
        assert await tocsin.facts("ownership.>", OwnershipAssigned) == [], "no worker declares a shard"
        told = [recorded.message.data.shard for recorded in await tocsin.facts("cron.triggered.*", CronTriggered)]
        assert sorted(filter(None, told)) == list(SHARDS)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.full
async def test_killed_owners_and_planner_lose_no_shard(nats_url: str, tmp_path: Path) -> None:
    """Kill -9 of two of three owners while they run, and of the stages that fan out; `owners` runs a hundred rounds."""
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        outcome = await Owners(tocsin, CHANCE).run(ROUNDS)
    assert outcome.problems == []
    assert outcome.runs >= ROUNDS * len(SHARDS)
    assert outcome.moved >= ROUNDS
