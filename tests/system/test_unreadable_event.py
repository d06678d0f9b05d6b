"""An event that no version reads, on a real server: what rests on it waits until an operator sets it aside."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.guards import guarded
from tests.system.running import Running, running
from tests.system.test_foreign import judged, registry
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.bootstrap.commit_process import KEY, PARTITION
from tocsin.domain.commit import CommitEvent, LogHead, Seal
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Cancelled, Completed
from tocsin.engine import delivery_policy
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.services import health, repair

JOB = {"name": "etl", "function": "f", "overlap_policy": "enqueue"}


async def decide(tocsin: Running, subject: str, body: bytes, *, expect: int) -> None:
    """Store an event under its guard, as a stage of another version does."""
    if tocsin.installation.commits is not None:
        await commit(tocsin, subject, body)
        return
    names = tocsin.installation.names
    headers = guarded(subject, prefix=names.to_wire("x").removesuffix("x"), expect=expect)
    await tocsin.installation.connection.client.request(names.to_wire(subject), body, headers=headers, timeout=20)


async def commit(tocsin: Running, subject: str, body: bytes) -> None:
    """Store an event in a commit, as a stage of another version does."""
    installation = tocsin.installation
    root, clock = installation.names.root, installation.clock
    log = NatsCommitLog(installation.connection, f"{root}_COMMITS", f"{root}.commits")
    seal = Seal(root, PARTITION, {KEY: await installation.report_key()})
    writer = CommitWriter(log, PARTITION, Chain(seal, LogHead(KEY)), clock)
    event = CommitEvent(subject, "other", "@", msgspec.Raw(body))
    stored = None
    while stored is None:
        draft = seal.write(writer.chain.head, writer="other", at=clock.now(), taken={}, events=[event])
        stored = (await writer.append(draft)).sequence


async def test_job_goes_on_without_an_unreadable_event(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_policy, "_BACKOFF_S", (0.2,))
    worker, runs = Worker(), list[str]()
    begun, may_end = asyncio.Event(), asyncio.Event()

    @worker.task("f")
    async def f(context: Context) -> None:
        runs.append(context.execution_id)
        begun.set()
        await may_end.wait()

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await registry(tocsin).define(JobDefinition.model_validate(JOB))
        first = await registry(tocsin).trigger("etl")
        await asyncio.wait_for(begun.wait(), tocsin.patience)
        tail = await tocsin.log.tail(f"execution.etl.{first}.>")
        await decide(tocsin, f"execution.etl.{first}.completed.locked", b'{"v": 9}', expect=tail)
        may_end.set()
        await tocsin.trigger("etl")
        target = bootstrap.health_target(tocsin.installation)

        async def is_found() -> bool:
            return "event-unreadable" in {one.code for one in await health.examine(target) if one.level != "ok"}

        await tocsin.until(is_found)
        assert runs == [first]  # the lock is held

        found = await repair.find(tocsin.installation.stored, unreadable=True)
        projections = tocsin.installation.projections
        assert await repair.void_unreadable(tocsin.log, projections, found) == (1, [first])
        [ended] = await tocsin.ended("etl", Completed)
        second = ended.execution_id
        assert [end.execution_id for end in await tocsin.of_executions("etl", Cancelled)] == [first]
        assert runs == [first, second]

        async def is_well() -> bool:
            seen = await health.status(target)
            return not seen.foreign and all(each.oldest is None for each in seen.durables)

        await tocsin.until(is_well)  # no durable holds the archiver
        if tocsin.installation.commits is None:  # the audit reads no lists of reports yet
            assert await judged(tocsin) == []


async def test_dependents_wait_for_no_event_of_another_job(nats_url: str, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("f")
    async def f(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({**JOB, "name": "other"}, {**JOB, "name": "load"})
        await tocsin.apply({**JOB, "name": "report", "depends_on": [{"job": "load", "within": "1h"}]})
        await decide(tocsin, "ledger.other.due", b'{"v": 9}', expect=await tocsin.log.tail("ledger.other.>"))
        await tocsin.trigger("load")
        await tocsin.ended("load", Completed)
        await tocsin.trigger("report")
        await tocsin.ended("report", Completed)
