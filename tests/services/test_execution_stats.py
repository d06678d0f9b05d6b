"""Statistics of executions to which everything happened."""

from datetime import timedelta
from pathlib import Path

from tests.stages.recovering import GRAPH, JOB, LOSS, MINUTE, Scene
from tests.stages.world import World
from tests.system.running import running
from tocsin import Context, Worker
from tocsin.adapters.sql.history import open_history
from tocsin.domain.events import Completed
from tocsin.services.overview import ExecutionStats, RecoveryStats, statistics
from tocsin.subjects import Stream


async def test_what_was_lost_and_recovered_is_counted(tmp_path: Path) -> None:
    world = World()
    scene = Scene(world)
    await world.define({**JOB, "overlap_policy": "allow"})
    await scene.begin("before")
    await scene.report(await scene.claim())
    await scene.passes(MINUTE)
    since = world.clock.now()
    await scene.begin("it runs")
    await scene.report(await scene.claim())
    await world.define({**GRAPH, "overlap_policy": "allow"})
    await scene.begin_and_lose("it is lost once")
    await scene.passes(LOSS)
    for _ in range(2):
        await scene.report(await scene.claim())
    await scene.begin_and_lose("it is lost for good")
    for _ in range(3):
        await scene.passes_in_vain(LOSS)
    await scene.passes(LOSS)
    await scene.begin("it waits")
    now = world.clock.now()
    async with open_history(f"sqlite:///{tmp_path}/history.db") as history:
        facts = await world.log.read("execution.>")
        for number, fact in enumerate(facts):  # the history is no worse for batches of one event
            before = facts[number - 1].sequence if number else 0
            await history.record(Stream.LOG, [fact], after=before, upto=fact.sequence)
        found = await statistics(history.summaries, since=since, now=now)
        everything = await statistics(history.summaries, since=since - timedelta(days=1), now=now)
        nothing = await statistics(history.summaries, since=now + timedelta(seconds=1), now=now)
    assert found.executions == ExecutionStats(4, 2, 1, 1, 100.0 * 2 / 3)
    assert found.recoveries == RecoveryStats(4, 1, 3, 1, 25.0)
    assert (found.since, found.until) == (since, world.clock.now())
    assert everything.executions.successful_executions == 3
    assert nothing.executions == ExecutionStats(0, 0, 0, 0, None)
    assert nothing.recoveries == RecoveryStats(0, 0, 0, 0, None)


async def test_what_ran_is_counted_on_a_real_server(nats_url: str, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("f")
    async def handler(_context: Context) -> None:
        return None

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({"name": "j", "function": "f", "overlap_policy": "allow"})
        before = await tocsin.log.now()
        for _ in range(3):
            await tocsin.trigger("j")
        await tocsin.ended("j", Completed, 3)
        since, now = before - timedelta(minutes=1), await tocsin.log.now()
        async with open_history(f"sqlite:///{tmp_path}/stats.db") as history:
            facts = await tocsin.log.read("execution.>")
            await history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
            found = await statistics(history.summaries, since=since, now=now)
    assert found.executions == ExecutionStats(3, 3, 0, 0, 100.0)
