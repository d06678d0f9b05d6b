"""The operations of an operator on a real server, with a worker and with kills in between."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.system.processes import Program, Site, site
from tests.system.running import running
from tests.system.worker_process import noted
from tocsin import Context, Worker, subjects
from tocsin.domain.events import (
    Cancelled,
    CancelRequest,
    Completed,
    DeadLettered,
    Dispatched,
    Requested,
    Resolved,
    Started,
    Trigger,
)
from tocsin.services.jobs import Registry
from tocsin.services.operations import backfill, dead_letters, execution_requests
from tocsin.services.operations.backfill import Span
from tocsin.services.operations.errors import OperationError

STAGES_BUT_THE_PLANNER = (
    *("registrar", "lock_keeper", "dag_advancer", "matcher"),
    *("retrier", "dead_letter_sink", "recorder"),
)
GRAPH = [
    {"name": "extract", "function": "extract"},
    {"name": "load", "function": "wait", "depends_on": ["extract"]},
    {"name": "clean", "function": "extract", "depends_on": ["load"]},
]


@pytest.mark.parametrize("by_message", [False, True])
async def test_running_graph_is_cancelled(nats_url: str, tmp_path: Path, *, by_message: bool) -> None:
    worker = Worker()
    interrupted: list[str] = []

    @worker.task("extract")
    async def extract(_: Context) -> None: ...

    @worker.task("wait")
    async def wait(context: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.append(context.execution_id)

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({"name": "etl", "dag": GRAPH, "overlap_policy": "enqueue"})
        await tocsin.trigger("etl")
        await tocsin.trigger("etl")

        async def at_work() -> str:
            started = await tocsin.of_executions("etl", Started)
            return next((fact.execution_id for fact in started if fact.step == "load"), "")

        first = await tocsin.until(at_work)
        if by_message:
            client, prefix = tocsin.installation.connection.client, tocsin.installation.names.cancel_prefix
            await client.publish(f"{prefix}.etl.{first}", b'{"reason": "wrong day", "by": {"identity": "ada"}}')
        else:
            done = await execution_requests.cancel(tocsin.log, first, reason="wrong day")
            assert done.changed
        [cancelled] = await tocsin.ended("etl", Cancelled)
        assert (cancelled.execution_id, cancelled.reason) == (first, "wrong day")
        if by_message:
            assert len(await tocsin.facts("public.cancel.>", CancelRequest)) == 1

        async def second_at_work() -> str:
            started = await tocsin.of_executions("etl", Started)
            return next(
                (fact.execution_id for fact in started if fact.step == "load" and fact.execution_id != first), ""
            )

        second = await tocsin.until(second_at_work)  # the lock was handed on

        async def is_interrupted() -> bool:
            return first in interrupted

        await tocsin.until(is_interrupted)
        assert not (await execution_requests.cancel(tocsin.log, first)).changed
        await execution_requests.cancel(tocsin.log, second)
        dispatched = {(fact.execution_id, fact.step) for fact in await tocsin.of_executions("etl", Dispatched)}
        assert dispatched == {(one, step) for one in (first, second) for step in ("extract", "load")}


async def ended(tocsin: Site, mortal: Program) -> None:
    """Wait until a program has killed itself."""

    async def is_dead() -> bool:
        return mortal.ended is not None

    await tocsin.until(is_dead)
    assert mortal.ended == -signal.SIGKILL, mortal.said()
    tocsin.programs.remove(mortal)


@pytest.mark.slow
async def test_replay_is_one_execution_after_any_kill(nats_url: str, tmp_path: Path) -> None:
    """Kill the planner right after the plan of the replay, and the DAG advancer right after the end."""
    job = {"name": "doomed", "dead_letter": True, "retry": {"max_attempts": 1}}
    async with site(nats_url, tmp_path) as tocsin:
        stages = [tocsin.start(*(s for s in STAGES_BUT_THE_PLANNER if s != "dag_advancer")), tocsin.start_worker()]
        advancer, planner = tocsin.start("dag_advancer"), tocsin.start("planner")
        assert all(program.ended is None for program in stages)
        await tocsin.ready()
        await tocsin.apply({**job, "function": "broken"})
        await tocsin.trigger("doomed")
        [kept] = await tocsin.until(lambda: tocsin.facts("dead-letter.doomed.*.dead-lettered", DeadLettered))
        await tocsin.apply({**job, "function": "work"})
        for program in (advancer, planner):
            program.kill()
            tocsin.programs.remove(program)

        made = await dead_letters.replay(tocsin.log, kept.message.id, reason="repaired")
        with pytest.raises(OperationError) as refused:
            await dead_letters.replay(tocsin.log, kept.message.id)
        assert refused.value.code == "replay-open"
        await ended(tocsin, tocsin.start("planner", module=("tests.system.mortal", "admitted")))
        tocsin.start("planner")
        await ended(tocsin, tocsin.start("dag_advancer", module=("tests.system.mortal", "completed")))
        tocsin.start("dag_advancer")

        resolved = await tocsin.until(lambda: tocsin.facts("dead-letter.doomed.*.resolved", Resolved))
        assert [fact.message.execution_id for fact in resolved] == [made.execution_id]
        everything = await tocsin.checked()
        asked = {fact.message.execution_id for fact in everything.facts(Requested) if fact.message.trigger == "replay"}
        assert asked == {made.execution_id}
        assert {fact.message.execution_id for fact in everything.facts(Completed)} == asked
        assert noted(tocsin.runs)[made.execution_id or "", "main", 1] == 1
        await tocsin.history_agrees_with(everything)
        async with tocsin.installation.history() as history:
            assert [row.resolved for row in (await history.dead_letters()).rows] == [True]


@pytest.mark.slow
async def test_repeated_backfill_creates_nothing_twice(nats_url: str, tmp_path: Path) -> None:
    """Interrupt the backfill halfway with the planner, continue it, and run it once more as a whole."""
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    span = Span(end - timedelta(hours=12), end)
    async with site(nats_url, tmp_path) as tocsin:
        tocsin.start(*STAGES_BUT_THE_PLANNER)
        tocsin.start_worker()
        planner = tocsin.start("planner")
        await tocsin.ready()
        await tocsin.apply({"name": "hourly", "schedule": "0 * * * *", "function": "work"})
        log, clock = tocsin.log, tocsin.installation.clock
        wanted = await backfill.plan(
            tocsin.installation.stored,
            Registry(log, tocsin.installation.projections, clock),
            "hourly",
            span,
            now=datetime.now(UTC),
        )
        assert len(wanted.instants) == 12
        asked = []
        async for one in backfill.begin(log, wanted, clock, rate=200):
            asked.append(one.execution_id)
            if len(asked) == 6:
                planner.kill()
                break
        planner.start()
        for _ in range(2):
            again = [one.execution_id async for one in backfill.begin(log, wanted, clock, rate=200)]
            assert again[:6] == asked[:6]
        await tocsin.ended("hourly", Completed, 12)
        await tocsin.delete("hourly")
        everything = await tocsin.checked()
        made = {fact.message.execution_id: fact.message for fact in everything.facts(Requested)}.values()
        assert sorted(fact.scheduled_time for fact in made) == list(wanted.instants)
        assert {(fact.trigger, fact.backfill) for fact in made} == {("backfill", wanted.name)}
        assert len({fact.message.execution_id for fact in everything.facts(Completed)}) == 12
        assert sum(noted(tocsin.runs).values()) == 12
        assert len(await tocsin.facts(subjects.trigger("hourly", subjects.ANY), Trigger)) == 12
