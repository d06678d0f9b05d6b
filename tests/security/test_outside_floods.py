"""A flood of one program delays other work by two batches at most."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest

from tests.domain.given import proven
from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.security.test_outside_requests import deciding
from tests.system.running import Running
from tests.system.running import deciding as storing
from tocsin import bootstrap, subjects
from tocsin.adapters.nats.consumers.stage_router import BATCH
from tocsin.bootstrap import Installation
from tocsin.domain import execution
from tocsin.domain.events import (
    Cancelled,
    CancelRequest,
    Completed,
    Dispatched,
    Due,
    Failed,
    Failure,
    Message,
    PoisonMessage,
    Queued,
    Recorded,
    Report,
    Requested,
    Skipped,
    Started,
    Trigger,
    validated,
)
from tocsin.ports import Append, Publish
from tocsin.stages import lock_keeper

FLOOD: Final = 8 * BATCH
WAITING: Final = 4 * BATCH
"""A burst that is read ahead whole, also on a busy machine."""
ENDS: Final = 3 * BATCH
"""The same of ends, of which less is read ahead."""
REPORTS: Final = 300
INVENTED: Final = 550
"""More than may come first, and with the reports read ahead whole."""
AHEAD: Final = 2 * BATCH
"""Messages of a flood that may be decided before other work: a batch in progress, and one that was taken meanwhile."""


def burst() -> list[Publish]:
    """Triggers of one job, through the API."""
    return [Publish(subjects.trigger("burst"), Trigger(), message_id=f"burst-{number}") for number in range(FLOOD)]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


@asynccontextmanager
async def running(scheduler: Installation, stage: str) -> AsyncIterator[None]:
    """Run one stage within the block."""
    task = asyncio.create_task(bootstrap.run_stages(scheduler, [stage]))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("policy", ["allow", "enqueue"])
async def test_flood_of_triggers_yields_to_other_work(policy: str, secured: Server, tmp_path: Path) -> None:
    async with (
        connected(secured, tmp_path, "operator") as it,
        connected(secured, tmp_path, "scheduler") as scheduler,
        connected(secured, tmp_path, "public-shop") as shop,
    ):
        tocsin, client = Running(it), shop.connection.client
        for name in ("flooded", "due", "own"):
            await tocsin.apply({"name": name, "function": "f", "overlap_policy": policy})
        for _ in range(FLOOD):
            await client.publish("cron.trigger.flooded", b"{}")
        await client.flush()
        await tocsin.stored("outside.shop.trigger.>", Trigger, FLOOD)
        await tocsin.trigger("own")
        [defined] = await it.log.load(subjects.ledger("due"))
        due = Due(job="due", scheduled_time=defined.time, definition=defined.sequence)
        async with storing(scheduler) as stage:
            await stage.log.append(due, expect=defined.sequence)
        async with deciding(secured, tmp_path):
            begun = await tocsin.stored("execution.>", Requested, FLOOD + 2)
    order = [recorded.message.job for recorded in sorted(begun, key=lambda recorded: recorded.sequence)]
    for job in ("due", "own"):
        assert len(list(takewhile(job.__ne__, order))) <= AHEAD


async def test_burst_of_a_job_yields_to_others(secured: Server, tmp_path: Path) -> None:
    """The requests of others are in the same streams, after the bursts.

    One burst is of a job through the API, and one of a program outside.
    """
    async with (
        connected(secured, tmp_path, "operator") as it,
        connected(secured, tmp_path, "public-shop") as shop,
        connected(secured, tmp_path, "public") as public,
    ):
        tocsin = Running(it)
        for name in ("burst", "own", "of-shop", "of-shop-2", "of-public"):
            await tocsin.apply({"name": name, "function": "f", "overlap_policy": "allow"})
        await it.log.write(burst()[:WAITING])
        await tocsin.trigger("own")
        for _ in range(WAITING):
            await shop.connection.client.publish("cron.trigger.of-shop", b"{}")
        await shop.connection.client.publish("cron.trigger.of-shop-2", b"{}")
        await shop.connection.client.flush()
        await tocsin.stored("outside.shop.trigger.>", Trigger, WAITING + 1)
        await public.connection.client.publish("cron.trigger.of-public", b"{}")
        await tocsin.stored("outside.public.trigger.>", Trigger, 1)
        async with deciding(secured, tmp_path):
            begun = await tocsin.stored("execution.>", Requested, 2 * WAITING + 3)
    order = [recorded.message.job for recorded in sorted(begun, key=lambda recorded: recorded.sequence)]
    assert len(list(takewhile("own".__ne__, filter({"burst", "own"}.__contains__, order)))) <= AHEAD
    for job in ("of-shop-2", "of-public"):
        assert len(list(takewhile(job.__ne__, filter({"of-shop", job}.__contains__, order)))) <= AHEAD


async def test_waiting_list_of_a_job_yields_to_others(secured: Server, tmp_path: Path) -> None:
    """All executions wait for a lock, and the lock keeper finds the burst first."""
    async with connected(secured, tmp_path, "operator") as it, connected(secured, tmp_path, "scheduler") as scheduler:
        tocsin = Running(it)
        await tocsin.apply({"name": "burst", "function": "f", "overlap_policy": "enqueue"})
        await tocsin.apply({"name": "own", "function": "f", "overlap_policy": "skip"})
        async with running(scheduler, "planner"):
            await it.log.write(burst()[:WAITING])
            await tocsin.stored("execution.burst.>", Requested, WAITING)
            await tocsin.trigger("own")
            await tocsin.trigger("own")
            await tocsin.stored("execution.own.>", Requested, 2)
        async with running(scheduler, "lock_keeper"):
            [skipped] = await tocsin.stored("execution.own.>", Skipped, 1)
            queued = await tocsin.stored("lock.burst.>", Queued, 1)
    assert sum(recorded.sequence < skipped.sequence for recorded in queued) <= AHEAD


@pytest.mark.parametrize(("stage", "end"), [("dag_advancer", Completed), ("retrier", Failed)])
async def test_burst_of_reports_yields_to_others(
    stage: str, end: type[Completed | Failed], secured: Server, tmp_path: Path
) -> None:
    """The report on another job's task comes last.

    One burst is of a job, and one of a worker that invents jobs.
    """
    async with (
        connected(secured, tmp_path, "operator") as it,
        connected(secured, tmp_path, "scheduler") as scheduler,
        connected(secured, tmp_path, "worker") as worker,
    ):
        tocsin, key = Running(it), await scheduler.report_key()
        once = {"max_attempts": 1}
        for name in ("burst", "own"):
            await tocsin.apply({"name": name, "function": "f", "overlap_policy": "allow", "retry": once})
        async with running(scheduler, "planner"):
            await it.log.write(burst()[:REPORTS])
            await tocsin.trigger("own")
            tasks = await tocsin.stored("execution.>", Dispatched, REPORTS + 1)
            claims = [Append((claim_of(task.message),), expect=task.sequence) for task in tasks]
            stored = await scheduler.log.write(claims)
        places = [claim.sequences[0] for claim in stored]
        reports = [
            report_of(task, claim, key, is_failed=end is Failed) for task, claim in zip(tasks, places, strict=True)
        ]
        invented = [replace_job(reports[0], f"invented-{number}") for number in range(INVENTED)]
        in_order = sorted(reports, key=lambda report: report.job)  # `own` is the last
        for report in (*invented, *in_order):
            await worker.connection.client.publish(worker.names.to_wire(subjects.subject_of(report)), report.encode())
        await worker.connection.client.flush()
        await tocsin.stored("report.>", Report, INVENTED + REPORTS + 1)
        async with running(scheduler, stage):
            ends = await tocsin.stored("execution.>", end, REPORTS + 1)
    assert [recorded.message.job for recorded in ends].index("own") <= AHEAD


def claim_of(task: Dispatched) -> Started:
    place = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": task.attempt}
    return validated(Started, {**place, "delivery": 1, "worker": "w"})


def report_of(task: Recorded[Dispatched], claim: int, key: bytes, *, is_failed: bool) -> Report:
    """Return the report of the worker that has a claim."""
    fact = task.message
    report = Report(
        job=fact.job,
        execution_id=fact.execution_id,
        outcome="failed" if is_failed else "completed",
        step=fact.step,
        attempt=fact.attempt,
        delivery=1,
        token=fact.token,
        claim=claim,
        error=Failure(type="E", retryable=False) if is_failed else None,
    )
    return proven(report, key=key)


def replace_job(report: Report, job: str) -> Report:
    """Return a report on a task of another job, which its proof does not cover."""
    return report.changed(job=job, proof="0" * 32)


async def test_ends_of_a_job_yield_to_others(secured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock keeper finds the ends of many cancelled executions before that of another job."""
    handled: dict[str, str] = {}
    may_hold = lock_keeper._may_hold

    def noted(end: Message) -> bool:
        assert isinstance(end, Cancelled)
        handled[end.execution_id] = end.job
        return may_hold(end)

    async with connected(secured, tmp_path, "operator") as it, connected(secured, tmp_path, "scheduler") as scheduler:
        tocsin = Running(it)
        for name in ("burst", "own"):
            await tocsin.apply({"name": name, "function": "f", "overlap_policy": "allow"})
        async with running(scheduler, "planner"):
            await it.log.write(burst()[:ENDS])
            await tocsin.trigger("own")
            begun = await tocsin.stored("execution.>", Requested, ENDS + 1)
            in_order = sorted(begun, key=lambda request: request.message.job)  # `own` is the last
            await scheduler.log.write(
                [Append(tuple(execution.cancel(execution.fold([each]))), expect=each.sequence) for each in in_order]
            )
        monkeypatch.setattr(lock_keeper, "_may_hold", noted)
        async with running(scheduler, "lock_keeper"), asyncio.timeout(tocsin.patience):
            while "own" not in handled.values():  # noqa: ASYNC110 - the stage stores nothing
                await asyncio.sleep(0.01)
    assert [*handled.values()].index("own") <= AHEAD


async def test_flood_of_cancels_yields_to_other_work(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, connected(secured, tmp_path, "public-shop") as shop:
        tocsin, client = Running(it), shop.connection.client
        await tocsin.apply({"name": "own", "function": "f"})
        for number in range(FLOOD):
            await client.publish(f"cron.cancel.own.unknown-{number}", b"{}")
        await client.flush()
        await tocsin.stored("outside.shop.cancel.>", CancelRequest, FLOOD)
        await tocsin.trigger("own")
        async with deciding(secured, tmp_path):
            [begun] = await tocsin.stored("execution.>", Requested, 1)
            refused = await tocsin.stored("dead-letter.>", PoisonMessage, FLOOD)
    assert begun.sequence < refused[AHEAD].sequence
