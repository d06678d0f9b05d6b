"""The archiver as a stage: when it works, its reports to operators, and its other removals."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from tests.commits.test_archive import Archiving
from tests.domain.given import KEY, admitted, recorded
from tocsin.adapters.memory.archive import InMemoryStoredLog, InMemoryStreamPurge
from tocsin.adapters.sql.history import open_memory_history
from tocsin.archive.log_archive import Failure
from tocsin.domain.events import Completed, HeartbeatDetails, Message, PolicyDefined, Recorded, StepProgress
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import ArchiveUnavailable, History
from tocsin.stages.archiver.stage import Archiver, FinishedHeartbeats
from tocsin.stages.archiver.unproven_reports import UnprovenReports
from tocsin.subjects import Stream

DAY = timedelta(days=1)


class Crash(Exception):
    """The process dies."""


class Policy:
    """The part of the log that the archiver reads."""

    def __init__(self, *facts: Message) -> None:
        self._facts = recorded(facts)

    async def load(self, _scope: str) -> Sequence[Recorded[Message]]:
        return self._facts


class Site:
    """An installation whose commits are old."""

    def __init__(self, history: History) -> None:
        self.archiving = Archiving()
        self.clock = self.archiving.clock
        self.inputs = self.archiving.inputs
        self.history = history

    def heartbeats(self) -> FinishedHeartbeats:
        fold = self.archiving.work.process.loop.fold
        return FinishedHeartbeats(lambda: fold, InMemoryStoredLog(self.inputs), InMemoryStreamPurge(self.inputs))

    def archiver(self, *, policy: Sequence[Message] = (), retention: timedelta = 90 * DAY) -> Archiver:
        streams, purge = InMemoryStoredLog(self.inputs), InMemoryStreamPurge(self.inputs)
        guard = ClockGuard(self.inputs, self.clock)
        return Archiver(
            self.archiving.archiver(),
            purge,
            Policy(*policy),  # type: ignore[arg-type] # what it reads
            self.history,
            LeaderElection(self.archiving.place.projections, guard, key="archiver", holder="test"),
            self.clock,
            retention=retention,
            interval=300.0,
            heartbeats=self.heartbeats(),
            unproven=UnprovenReports(self.inputs, streams, KEY, limit=-1),
        )

    async def record(self, *days: int) -> None:
        """Record executions that ended so many days ago."""
        facts = list[Recorded[Message]]()
        for number, ago in enumerate(days):
            at = self.clock.now() - ago * DAY
            begun = admitted().changed(execution_id=f"e{number}", scheduled_time=at)
            ended = Completed(
                job=begun.job,
                execution_id=begun.execution_id,
                scheduled_time=begun.scheduled_time,
                trigger=begun.trigger,
                step="main",
                attempt=1,
            )
            facts += [
                Recorded(one.message, one.subject, len(facts) + one.sequence, at) for one in recorded([begun, ended])
            ]
        await self.history.record(Stream.LOG, facts, after=0, upto=len(facts))

    async def kept(self) -> int:
        return len((await self.history.executions()).rows)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_memory_history() as history:
        site = Site(history)
        await site.archiving.work.define("job")
        await site.archiving.day()
        yield site


async def test_heartbeats_leave_with_their_execution(site: Site) -> None:
    work = site.archiving.work
    await work.trigger("job", "open")
    await work.runner.rest()
    scopes = {scope.split(".")[2]: state for scope, state in (await work.states()).items()}
    over = {execution_id for execution_id, state in scopes.items() if state.is_over}
    assert over
    assert scopes.keys() - over
    for execution_id in scopes:
        beat = HeartbeatDetails(
            job="job", execution_id=execution_id, step="main", attempt=1, time=site.clock.now(), details=7
        )
        site.inputs.receive(f"heartbeat.job.{execution_id}.main.1.seal", beat.encode())
    progress = StepProgress(job="job", execution_id="open", step="main", attempt=1, time=site.clock.now(), fraction=0.5)
    site.inputs.receive("progress.job.open.main.1.seal", progress.encode())
    removing = site.heartbeats()
    assert await removing.run_once() == 0  # the fold may lag
    assert await removing.run_once() == len(over)
    assert await removing.run_once() == 0
    left = [entry.subject.split(".") for entry in site.inputs.stream(Stream.PROGRESS).entries_after(0)]
    assert {tokens[2] for tokens in left if tokens[0] == "heartbeat"} == scopes.keys() - over
    assert [tokens[0] for tokens in left].count("progress") == 1


@pytest.mark.parametrize("leads", [False, True])
async def test_archiver_works_as_long_as_it_leads(site: Site, monkeypatch: pytest.MonkeyPatch, *, leads: bool) -> None:
    archiver, calls = site.archiver(), list[str]()
    if leads:
        await archiver.leadership.run_once()

    async def heartbeats() -> int:
        calls.append("heartbeats")
        return 0

    async def once(_: datetime) -> bool:
        calls.append("portion")
        return len(calls) < 3

    monkeypatch.setattr(archiver._heartbeats, "run_once", heartbeats)
    monkeypatch.setattr(archiver, "run_once", once)
    monkeypatch.setattr(site.clock, "sleep", AsyncMock(side_effect=Crash))
    with pytest.raises(Crash):
        await archiver.run()
    assert calls == (["heartbeats", "portion", "portion"] if leads else [])


async def test_absent_store_delays_and_is_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, archiver = await site.archiving.stored(), site.archiver()
    await archiver.leadership.run_once()
    failed_at = site.clock.now()
    with monkeypatch.context() as away:
        away.setattr(site.archiving.store, "put", AsyncMock(side_effect=ArchiveUnavailable("the archive: no answer")))
        away.setattr(site.clock, "sleep", AsyncMock(side_effect=[None, Crash]))
        with pytest.raises(Crash), capture_logs() as lines:
            await archiver.run()
    assert [line["action"] for line in lines] == ["archive-waits", "archive-waits"]
    assert await site.archiving.stored() == before
    state, _ = await site.archiving.archive.state()
    assert state.failure == Failure(failed_at, "ArchiveUnavailable: the archive: no answer")
    while await archiver.run_once(site.clock.now()):
        pass
    state, _ = await site.archiving.archive.state()
    assert state.failure is None
    assert len(await site.archiving.stored()) < len(before)


async def test_server_that_cannot_purge_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemoryStreamPurge, "obstacle", lambda _: "the server is too old")
    before = await site.archiving.stored()
    await site.record(2)
    with capture_logs() as lines:
        await site.archiver(retention=DAY).run_once(site.clock.now())
    assert await site.archiving.stored() == before
    assert [(line["action"], line["reason"]) for line in lines] == [("archiver-cannot", "the server is too old")]
    assert await site.kept() == 0  # the history forgets in any case


@pytest.mark.parametrize(
    ("retention", "policy"),
    [(2 * DAY, []), (90 * DAY, [PolicyDefined(job_history_retention_days=2)])],
    ids=["settings", "policy"],
)
async def test_history_forgets_rows_after_its_retention(
    site: Site, retention: timedelta, policy: list[Message]
) -> None:
    await site.record(1, 3, 5)
    archiver = site.archiver(policy=policy, retention=retention)
    while await archiver.run_once(site.clock.now()):
        pass
    assert await site.kept() == 1
