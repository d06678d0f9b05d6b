"""Sixteen shards: exactly sixteen runs, with real processes, also when some of them are killed."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.system.processes import DECIDERS, GROUPS, Site, site
from tocsin.domain.events import Admitted, Completed, CronTriggered, FannedOut, OwnershipAssigned, Shard
from tocsin.services.shards import ShardMaps

PATIENCE_S: Final = 500
"""A killed worker is silent for 30 seconds, and a busy machine takes long to start processes."""
WORKERS: Final = "tests.system.shard_process:worker"
IDS: Final = tuple(f"s{number:02}" for number in range(16))
SOON: Final = timedelta(seconds=20)


async def prepare(tocsin: Site, **job: object) -> None:
    await ShardMaps(tocsin.log).apply(Shard(shard_id=name) for name in IDS)
    await tocsin.apply({"name": "sweep", "function": "sweep", "partition": "all_shards", "timeout": 60, **job})


async def sixteen_runs(tocsin: Site) -> None:
    """Each shard has one execution, which completed once."""

    async def ended() -> bool:
        return (await tocsin.ends())["sweep"] == 1 + len(IDS)  # and the fan-out itself

    await tocsin.until(ended)
    everything = await tocsin.checked()
    [fanned] = [recorded.message for recorded in everything.facts(FannedOut)]
    assert fanned.shards == IDS
    admitted = [recorded.message for recorded in everything.facts(Admitted)]
    assert Counter(event.plan.shard for event in admitted) == Counter(IDS)
    completed = [recorded.message for recorded in everything.facts(Completed)]
    assert Counter(event.shard for event in completed) == Counter(IDS)
    assert {event.execution_id for event in completed} == {event.execution_id for event in admitted}
    code, shown = await tocsin.call("executions", "show", fanned.execution_id)
    assert (code, shown["status"], shown["fan_out"]["counts"]) == (0, "completed", {"completed": 16})
    await tocsin.history_agrees_with(everything)


def runs(tocsin: Site) -> list[list[str]]:
    """The runs of the handler: execution, shard and worker."""
    return [line.split() for line in tocsin.runs.read_text("utf-8").splitlines()] if tocsin.runs.exists() else []


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
        assert Counter(run[1] for run in runs(tocsin)) == Counter(IDS)
        assert await tocsin.facts("ownership.>", OwnershipAssigned) == [], "no worker declares a shard"
        told = [recorded.message.data.shard for recorded in await tocsin.facts("cron.triggered.*", CronTriggered)]
        assert sorted(filter(None, told)) == list(IDS)


@pytest.mark.timeout(PATIENCE_S)
async def test_killed_owners_and_planner_lose_no_shard(nats_url: str, tmp_path: Path) -> None:
    """Kill -9 of two of three owners while they run, and of the stages that fan out."""
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        await prepare(tocsin, overlap_policy="enqueue", input={"is_long": True})
        stages = {group: tocsin.start(*group) for group in GROUPS}
        workers = [tocsin.start_worker(WORKERS, worker__shards='["*"]') for _ in range(3)]
        await tocsin.ready()
        await tocsin.trigger("sweep")

        async def all_run() -> bool:
            return len({run[2] for run in runs(tocsin)}) == len(workers)

        await tocsin.until(all_run)
        for killed in workers[:2]:
            killed.kill()
            tocsin.programs.remove(killed)
        deciders = stages[DECIDERS]
        deciders.kill()
        deciders.start()
        await tocsin.ready()
        await sixteen_runs(tocsin)
        assert {run[1] for run in runs(tocsin)} == set(IDS)
        owners = {
            recorded.sequence: recorded.message for recorded in await tocsin.facts("ownership.>", OwnershipAssigned)
        }
        for _, shard, worker, epoch in runs(tocsin):
            owner = owners[int(epoch)]
            assert (owner.resource, owner.name) == (f"shard-{shard}", worker)
        assert "silent" in {owner.reason for owner in owners.values()}
        heirs = {owner.resource: owner.name for owner in owners.values() if owner.reason == "silent"}
        assert set(heirs.values()) == {next(run[2] for run in runs(tocsin) if f"-{workers[2].pid}-" in run[2])}
