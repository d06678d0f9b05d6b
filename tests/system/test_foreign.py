"""A job works on although messages that no stage stored are in its scopes, on a real server."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.services.health.test_status import program
from tests.system.running import Running, running
from tocsin import Context, Worker, bootstrap
from tocsin.archive import Selection, decoded, extents, read
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Completed, Due, ExecutionFact
from tocsin.services import health, repair
from tocsin.services.audit import Auditor
from tocsin.services.jobs import Registry
from tocsin.services.operations import execution_requests

ACK = b'{"stream":"TOCSIN_LEDGER", "seq":7}'
"""What a server answers to a publish."""
JOB = {"name": "victim", "function": "f", "overlap_policy": "enqueue", "schedule": "* * * * * *"}
LEDGER = ("due", "passed", "defined", "paused", "resumed", "deleted", "junk")


async def plant(tocsin: Running, subject: str, body: bytes = ACK) -> int:
    """Store a message past the stages, as a reply of the server or any client of the account would."""
    wire = tocsin.installation.names.to_wire(subject)
    reply = await tocsin.installation.connection.client.request(wire, body, timeout=20)
    sequence: int = json.loads(reply.data)["seq"]
    return sequence


def worker() -> tuple[Worker, list[str]]:
    runs: list[str] = []
    worker = Worker()

    @worker.task("f")
    async def f(context: Context) -> None:
        runs.append(context.execution_id)

    return worker, runs


def registry(tocsin: Running) -> Registry:
    installation = tocsin.installation
    return Registry(installation.log, installation.projections, installation.clock)


async def judged(tocsin: Running) -> list[tuple[str, str]]:
    """The violations of everything that is stored."""
    stored, auditor = tocsin.installation.stored, Auditor(patience=timedelta(minutes=5))
    auditor.judge_guards()
    async for message in read(stored, Selection(), await extents(stored, Selection())):
        auditor.stored(message)
        auditor.take(decoded(message))
    return [(violation.invariant, violation.entity) for violation in auditor.report().violations]


async def instants(tocsin: Running) -> list[datetime]:
    return [recorded.message.scheduled_time for recorded in await tocsin.facts("ledger.victim.due", Due)]


@pytest.mark.parametrize("body", [ACK, b"\xff", None], ids=["reply", "junk", "decision"])
async def test_job_with_foreign_messages_can_be_changed(nats_url: str, tmp_path: Path, body: bytes | None) -> None:
    handlers, runs = worker()
    async with running(nats_url, tmp_path, worker=handlers) as tocsin:
        jobs = registry(tocsin)
        await jobs.define(JobDefinition.model_validate(JOB))
        first, *_ = await tocsin.ended("victim", Completed)  # another second may have passed meanwhile
        planted = []
        for name in LEDGER:
            newest = await tocsin.log.last(f"ledger.victim.{name}")
            decision = ACK if newest is None else newest.message.encode()
            planted.append(("LEDGER", await plant(tocsin, f"ledger.victim.{name}", decision if body is None else body)))
        for subject in (
            *("lock.victim.acquired", "lock.victim.queued", "cron.triggered.victim"),
            f"execution.victim.{first.execution_id}.failed",
        ):
            newest = await tocsin.log.last(subject)
            decision = ACK if newest is None else newest.message.encode()
            planted.append(("LOG", await plant(tocsin, subject, decision if body is None else body)))
        before = len(runs)
        assert await jobs.pause("victim")
        assert (await jobs.job("victim")).status == "paused"
        assert await jobs.resume("victim")
        await jobs.define(JobDefinition.model_validate(JOB | {"description": "changed"}))
        assert (await jobs.job("victim")).definition.description == "changed"
        execution_id = await jobs.trigger("victim")

        async def has_run() -> bool:
            return execution_id in runs and len(runs) >= before + 3  # the schedule goes on as well

        await tocsin.until(has_run)
        assert len(set(runs)) == len(runs)
        await jobs.delete("victim")
        assert [job.name for job in await jobs.jobs()] == []
        times = await instants(tocsin)
        assert len(times) == len(set(times))
        assert sorted(await judged(tocsin)) == sorted(("I9", f"message {n} of {stream}") for stream, n in planted)
        await _repair(tocsin, planted)


async def _repair(tocsin: Running, planted: list[tuple[str, int]]) -> None:
    """Void the messages; processes showed those that they met."""
    installation = tocsin.installation
    target = bootstrap.health_target(installation)

    async def shown() -> set[tuple[str, int]]:
        return {(one.stream, one.sequence) for one in (await health.status(target)).foreign}

    assert await tocsin.until(shown) <= set(planted)
    found = await repair.find(installation.stored)
    assert [one.key for one in found] == sorted(planted)
    assert await repair.void(tocsin.log, installation.projections, found, reason="a test") == len(planted)
    assert await judged(tocsin) == []
    assert await shown() == set()


async def test_junk_about_leaders_breaks_no_answer(nats_url: str, tmp_path: Path) -> None:
    bodies = {"gained": ACK, "lost": b"\xff", "released": b"", "junk": b"{}", "gained.more": ACK}
    async with running(nats_url, tmp_path) as tocsin:
        await registry(tocsin).define(JobDefinition.model_validate(JOB))
        await tocsin.stored("ledger.victim.due", Due, 1)
        planted = [("LEDGER", await plant(tocsin, f"leadership.ticker.{name}", bodies[name])) for name in bodies]
        at = (await instants(tocsin))[0].isoformat()
        answered = await program(tocsin.settings, "why", "victim", at)
        assert answered.returncode == 0, answered.stderr
        listed = await program(tocsin.settings, "repair", "--dry-run", "-o", "json")
        assert [(each["stream"], each["sequence"]) for each in json.loads(listed.stdout)["messages"]] == planted
        assert sorted(await judged(tocsin)) == sorted(("I9", f"message {n} of {stream}") for stream, n in planted)
        found = await repair.find(tocsin.installation.stored)
        await repair.void(tocsin.log, tocsin.installation.projections, found, reason="a test")
        assert await judged(tocsin) == []


async def test_execution_with_foreign_messages_completes(nats_url: str, tmp_path: Path) -> None:
    """Messages are stored before the execution is planned, and while it runs."""
    handlers = Worker()
    begun, may_end = asyncio.Event(), asyncio.Event()

    @handlers.task("f")
    async def f(_: Context) -> None:
        begun.set()
        await may_end.wait()

    async with running(nats_url, tmp_path, worker=handlers) as tocsin:
        jobs = registry(tocsin)
        await jobs.define(JobDefinition.model_validate(JOB | {"schedule": None}))
        execution_id = await jobs.trigger("victim")
        await tocsin.until(_is_set(begun))
        for end in ("completed", "completed.locked", "failed", "cancelled", "started.main.1.1", "junk"):
            await plant(tocsin, f"execution.victim.{execution_id}.{end}")
        second = await jobs.trigger("victim")
        await plant(
            tocsin, f"execution.victim.{second}.cancelled", b'{"job":"victim","execution_id":"%b"}' % second.encode()
        )
        may_end.set()

        async def ends() -> set[str]:
            done = {fact.execution_id for fact in await tocsin.of_executions("victim", Completed)}
            return done if len(done) == 2 else set()

        assert await tocsin.until(ends) == {execution_id, second}


async def test_execution_with_a_foreign_end_can_be_cancelled(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        jobs = registry(tocsin)
        await jobs.define(JobDefinition.model_validate(JOB | {"schedule": None}))
        execution_id = await jobs.trigger("victim")
        await tocsin.stored(f"execution.victim.{execution_id}.>", ExecutionFact, 1)
        await plant(tocsin, f"execution.victim.{execution_id}.completed")
        done = await execution_requests.cancel(tocsin.log, execution_id, reason="no more")
        assert done.changed


async def test_restarted_stages_decide_nothing_twice(nats_url: str, tmp_path: Path) -> None:
    """A ticker that starts reads the last message of each subject, which may hide the newest decision."""
    handlers, _ = worker()
    async with running(nats_url, tmp_path, worker=handlers) as tocsin:
        await registry(tocsin).define(JobDefinition.model_validate(JOB))
        await tocsin.stored("ledger.victim.due", Due, 2)
        root = tocsin.settings.root
    async with running(nats_url, tmp_path, stages=[], root=root, public_prefix=f"{root}-cron") as tocsin:
        await plant(tocsin, "ledger.victim.due")
        await registry(tocsin).pause("victim")
        await registry(tocsin).resume("victim")
    async with running(nats_url, tmp_path, worker=worker()[0], root=root, public_prefix=f"{root}-cron") as tocsin:
        number = len(await instants(tocsin))

        async def goes_on() -> bool:
            return len(await instants(tocsin)) >= number + 2

        await tocsin.until(goes_on)
        assert [name for name, _ in await judged(tocsin)] == ["I9"]


def _is_set(event: asyncio.Event) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return event.is_set()

    return look
