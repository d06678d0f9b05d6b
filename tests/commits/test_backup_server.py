"""A backup of an installation on the log of commits, under load.

Another server gets it and goes on. And a log that lost its tail.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from tests.system.restoring import at_work, audited, called, empty_nats, new_installation, restored, settings
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.backup.verification import verify_backup
from tocsin.archive.stream_reader import decoded
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.commit import RESTORED, Commit, LogHead, Restoration
from tocsin.domain.events import Completed, Due, Message, Recorded, Started
from tocsin.domain.ledger import PUNCTUALITY
from tocsin.domain.log_events import decode
from tocsin.services.repair import LEAST_GAP
from tocsin.subjects import RECORDED

pytestmark = pytest.mark.full  # processes that are killed, on a server


LOAD = 300
JOBS = (
    {"name": "asked", "function": "quick", "overlap_policy": "allow"},
    {"name": "every", "schedule": "* * * * * *", "function": "quick", "catch_up": "once"},
    {"name": "skipping", "schedule": "* * * * * *", "function": "quick", "catch_up": "skip"},
    {"name": "long", "function": "long", "timeout": "10m"},
    {
        "name": "flaky",
        "function": "flaky",
        "retry": {"max_attempts": 2, "initial_delay": 4, "jitter": 0},
    },
)


class Runs:
    """The work of both installations, so that a test sees what ran in each."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.may_end = asyncio.Event()

    def worker(self) -> Worker:
        worker = Worker(concurrency=20)

        @worker.task("quick")
        async def quick(_: Context) -> None:
            await asyncio.sleep(0.01)

        @worker.task("long")
        async def long(context: Context) -> None:
            self.begun[context.execution_id] += 1
            await self.may_end.wait()

        @worker.task("flaky")
        async def flaky(context: Context) -> None:
            self.begun[context.execution_id] += 1
            if context.attempt == 1:
                raise RuntimeError("the first attempt fails")

        return worker


async def passed(installation: Installation, instants: Sequence[datetime]) -> None:
    """Wait until these instants are late, so that `catch_up` decides on them."""
    age = installation.clock.now() - max(instants)
    await asyncio.sleep((PUNCTUALITY - age).total_seconds() + 0.1)


async def begun(tocsin: Running, runs: Runs, number: int) -> None:
    """Wait until as many executions have begun to work."""

    async def are_begun() -> bool:
        return len(runs.begun) >= number

    await tocsin.until(are_begun)


async def stored(installation: Installation) -> list[Recorded[Message]]:
    """All events, oldest first."""
    return [decoded(message) async for message in installation.commits.reader.events(upto=10**12)]


async def commits(installation: Installation) -> list[Commit]:
    reader = installation.commits.reader
    assert reader is not None
    seal, head, found = await reader.seal(), LogHead(reader.key), list[Commit]()
    async for body in reader.bodies():
        head, commit = seal.read(head, body.sequence, body.body)
        if isinstance(commit, Commit):
            found.append(commit)
    return found


async def gaps(installation: Installation) -> list[Restoration]:
    events = [event for commit in await commits(installation) for event in commit.events if event.subject == RESTORED]
    return [change for event in events if isinstance(change := decode(event), Restoration)]


def due(events: list[Recorded[Message]], job: str) -> list[tuple[datetime, int]]:
    return [
        (r.message.scheduled_time, r.sequence) for r in events if isinstance(r.message, Due) and r.message.job == job
    ]


def open_executions(events: list[Recorded[Message]]) -> set[str]:
    executions = [r.subject.split(".") for r in events if r.subject.startswith("execution.")]
    over = {"completed", "failed", "cancelled", "skipped"}
    return {id_ for _, _, id_, *_ in executions} - {id_ for _, _, id_, kind, *_ in executions if kind in over}


async def is_idle(installation: Installation) -> bool:
    return not open_executions(await stored(installation))


async def test_backup_under_load_is_restored_and_goes_on(tmp_path: Path) -> None:
    runs, backup = Runs(), tmp_path / "backup"
    async with new_installation(settings(tmp_path)) as lost, at_work(lost, runs.worker()) as tocsin:
        await tocsin.apply(*JOBS)
        for job in ("long", "flaky"):
            await tocsin.trigger(job)
        await asyncio.gather(tocsin.ended("every", Completed, 3), begun(tocsin, runs, 2))
        await asyncio.gather(*(tocsin.trigger("asked") for _ in range(LOAD)))
        await tocsin.ended("asked", Completed, 10)

        await bootstrap.create_backup(lost, backup)
        in_backup = (await commits(lost))[-1].first

        async def fires_after_the_backup() -> bool:
            return due(await stored(lost), "skipping")[-1][1] > in_backup

        runs.may_end.set()
        await asyncio.gather(tocsin.ended("long", Completed), tocsin.until(fires_after_the_backup))
        before = await stored(lost)
    verification = await verify_backup(backup)
    assert verification.is_clean, (verification.damage, verification.audit)

    async with empty_nats(settings(tmp_path)) as there, bootstrap.connect(there) as installation:
        await restored(installation, backup)
        [gap] = await gaps(installation)
        assert gap.to - gap.from_ >= LEAST_GAP
        assert gap.to > before[-1].sequence
        await passed(installation, [at for job in ("every", "skipping") for at, _ in due(before, job)])
        async with at_work(installation, runs.worker()) as tocsin:
            tocsin.patience = 120  # the worker of the task that ran is silent
            await asyncio.gather(
                tocsin.ended("asked", Completed, LOAD),
                tocsin.ended("long", Completed),
                tocsin.ended("flaky", Completed),
            )
            await tocsin.trigger("asked")
            await tocsin.ended("asked", Completed, LOAD + 1)
            await tocsin.change("every", partial(ledger.pause, job="every"))
            await tocsin.change("skipping", partial(ledger.pause, job="skipping"))
            await tocsin.until(partial(is_idle, installation))
            report = await audited(installation)
        after = await stored(installation)

    assert not [(v["invariant"], v["entity"], v["reason"]) for v in report["violations"]][:20]
    assert report["clean"]
    assert any("was restored to event" in remark for remark in report["remarks"])
    for job in ("every", "skipping"):
        assert set(Counter(at for at, _ in due(after, job)).values()) == {1}
    kept = {at for at, number in due(after, "skipping") if number <= gap.from_}
    between = {at for at, _ in due(before, "skipping")} - kept
    assert between
    assert not between & {at for at, _ in due(after, "skipping")}
    assert all(r.sequence <= gap.from_ or r.sequence > gap.to for r in after)
    claims = [r.sequence for r in after if isinstance(r.message, Started)]
    lost_claims = {r.sequence for r in before if isinstance(r.message, Started) and r.sequence > gap.from_}
    assert lost_claims
    assert not lost_claims & set(claims)
    ends = Counter(r.message.execution_id for r in after if isinstance(r.message, Completed))
    assert set(ends.values()) == {1}


async def _lose(installation: Installation, number: int) -> None:
    """Lose the newest messages of the log, as a server that did not flush them."""
    log = installation.commits
    assert log is not None
    bodies = [body async for body in log.reader.bodies()]
    await installation.connection.manage(f"STREAM.DELETE.{installation.names.commits_stream}")
    await bootstrap.initialize(installation)
    for body in bodies[:-number]:
        await log.log.append(0, body.body, expect=body.sequence - 1)


async def test_lost_tail_is_ended_and_the_history_follows(tmp_path: Path) -> None:
    runs = Runs()
    async with new_installation(settings(tmp_path)) as installation:
        async with at_work(installation, runs.worker()) as tocsin:
            await tocsin.apply(JOBS[0])
            for _ in range(20):
                await tocsin.trigger("asked")
            await tocsin.ended("asked", Completed, 20)
            await recorded_all(installation, tocsin)
        before = await stored(installation)
        code, found = await called(installation.settings, "repair", "--lost-tail", "--yes")
        assert (code, found) == (0, {"number": found.get("number"), "known": None, "upto": None, "dry_run": False})
        await _lose(installation, 4)
        lost = {r.sequence for r in before} - {r.sequence for r in await stored(installation)}
        assert lost
        code, found = await called(installation.settings, "repair", "--lost-tail", "--dry-run")
        assert (code, found["upto"]) == (0, None)
        assert found["known"] in {before[-1].sequence, *lost}
        code, found = await called(installation.settings, "repair", "--lost-tail", "--yes")
        assert code == 0
        assert found["upto"] == found["known"] + LEAST_GAP > before[-1].sequence
        async with installation.history() as history:
            shown = await history.count()
        executions = {r.subject.split(".")[2] for r in await stored(installation) if r.subject.startswith("execution.")}
        assert shown == len(executions)
        async with at_work(installation, runs.worker()) as tocsin:
            tocsin.patience = 120
            await tocsin.trigger("asked")
            await tocsin.until(partial(is_idle, installation))
            report = await audited(installation)
        assert (report["clean"], report["violations"]) == (True, [])
        new = [r.sequence for r in await stored(installation) if r.sequence > found["number"]]
        assert new
        assert min(new) > found["upto"]


async def recorded_all(installation: Installation, tocsin: Running) -> None:
    """Wait until the history has every execution's end."""

    async def is_recorded() -> bool:
        end = (await stored(installation))[-1].sequence
        async with installation.history() as history:
            return max([await history.offset(stream) for stream in RECORDED]) >= end - 5

    await tocsin.until(is_recorded)
