"""The archiver on the in-memory log: it dies at every point, and nothing is lost, doubled, or comes back to life."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from tests.domain.given import JOB, KEY, output_subject, proven
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryStoredLog, InMemoryStreamPurge
from tocsin.adapters.sql import SqlHistory, open_history
from tocsin.archive.archive import Archive, ArchiveDamaged, ArchivingFailure, Origin, State
from tocsin.archive.combined_log import CombinedLog
from tocsin.archive.segment_selection import KEPT, Cursors
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    Dispatched,
    Due,
    Enqueued,
    Failure,
    HeartbeatDetails,
    OutputLine,
    PolicyDefined,
    Report,
    Skipped,
    Started,
    StepProgress,
    Terminal,
    UniqueRule,
)
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.delivery_policy import DeliveryPolicy
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import ArchiveUnavailable, EventLog, OutdatedState, StoredMessage, acknowledge_each
from tocsin.services.operations.execution_output import MAX_LINES, ExecutionOutput, read_output
from tocsin.services.operations.lookup import find
from tocsin.stages.archiver import finished_output
from tocsin.stages.archiver.archive_eligibility import CLOCK_SKEW, ArchiveEligibility
from tocsin.stages.archiver.finished_output import FinishedHeartbeats, FinishedOutput
from tocsin.stages.archiver.log_archiver import Keeping
from tocsin.stages.archiver.stage import LEAST, Archiver, PacedPurge
from tocsin.stages.archiver.unproven_reports import UnprovenReports
from tocsin.stages.recorder.stage import Recorder
from tocsin.subjects import RECORDED, STREAMS, Bucket, Stream, cursor
from tocsin.testing import settle

DAY = timedelta(days=1)
ENDS = {"completed", "failed", "skipped"}
KEEPING = Keeping(hot_window=DAY, max_messages=10_000, history=90 * DAY, settling=0)
ORIGIN = Origin(installation="i", root="tocsin", version="0")


class Crash(Exception):
    """The process dies."""


@dataclass
class Fate:
    """Makes the process die at one of its effects, before or right after the effect."""

    at: int | None = None
    behind: bool = False
    done: int = 0

    async def strike(self, doing: Any) -> Any:  # noqa: ANN401 - any effect
        self.done += 1
        if self.done == self.at and not self.behind:
            doing.close()
            raise Crash
        result = await doing
        if self.done == self.at:
            raise Crash
        return result


@dataclass
class Mortal:
    """Something of which some methods may be the last that a process calls."""

    of: Any
    fate: Fate
    methods: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        found = getattr(self.of, name)
        return (lambda *a, **k: self.fate.strike(found(*a, **k))) if name in self.methods else found


@dataclass
class Delivery:
    """A message that is delivered once more, however long ago it was acknowledged."""

    message: StoredMessage
    answers: list[str] = field(default_factory=list)
    delivered: int = 1

    @property
    def subject(self) -> str:
        return self.message.subject

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def sequence(self) -> int:
        return self.message.sequence

    @property
    def time(self) -> datetime:
        return self.message.time

    @property
    def headers(self) -> Mapping[str, str]:
        return self.message.headers

    @property
    def message_id(self) -> str | None:
        return self.message.headers.get("Nats-Msg-Id")

    async def ack(self) -> None:
        self.answers.append("ack")

    async def nak(self, delay: float) -> None:  # noqa: ARG002 - the port's
        self.answers.append("nak")

    async def term(self) -> None:
        self.answers.append("term")

    async def in_progress(self) -> None:
        self.answers.append("in progress")

    @staticmethod
    async def ack_many(deliveries: Sequence["Delivery"]) -> None:
        await acknowledge_each(deliveries)


class Site:
    """A world with an archive."""

    def __init__(self, history: SqlHistory) -> None:
        self.world = World()
        self.history = history
        self.store = InMemoryArchiveStore()
        self._answered: set[str] = set()
        self.streams = InMemoryStoredLog(self.world.log)
        self.whole = CombinedLog(self.streams, self.archive())
        cursors = Cursors(self.world.projections, self.world.clock)
        self.world.outcomes = DeliveryPolicy(self.world.store, is_decided=cursors.is_behind)
        self.stages = (
            self.world.registrar,
            self.world.planner,
            self.world.lock_keeper,
            self.world.dag_advancer,
            self.world.retrier,
            self.world.dead_letter_sink,
        )

    def archive(self, fate: Fate | None = None) -> Archive:
        fate = fate or Fate()
        store, projections = (Mortal(one, fate, ("put",)) for one in (self.store, self.world.projections))
        return Archive(store, projections)

    def archiver(self, fate: Fate | None = None, keeping: Keeping = KEEPING, *, keeps_output: bool = False) -> Archiver:
        housekeeping = Mortal(InMemoryStreamPurge(self.world.log), fate or Fate(), ("purge",))
        leadership = LeaderElection(
            self.world.projections, ClockGuard(self.world.log, self.world.clock), key="archiver", holder="test"
        )
        ripeness = ArchiveEligibility(
            self.streams, housekeeping, self.history, log=self.world.log, keeping=keeping, recorded=RECORDED
        )
        archive, clock = self.archive(fate), self.world.clock
        removing = PacedPurge(self.streams, housekeeping, archive, clock)
        return Archiver(
            ripeness,
            removing,
            archive,
            self.world.log,
            self.history,
            leadership,
            clock,
            origin=ORIGIN,
            keeping=keeping,
            output=FinishedOutput(self.streams, archive, ORIGIN) if keeps_output else None,
            heartbeats=FinishedHeartbeats(self.world.log, self.streams, housekeeping),
            unproven=UnprovenReports(self.world.log, self.streams, KEY, limit=-1),
        )

    async def settle(self) -> None:
        """Run all stages and answer tasks: job `doomed` fails, all others complete."""
        while True:
            await self.world.run(*self.stages)
            tasks = [task for task in await self.world.stored(Dispatched) if task.token not in self._answered]
            for task in tasks:
                self._answered.add(task.token)
                await self.work_on(task)
            if not tasks:
                break
        await self.record()

    async def work_on(self, task: Dispatched) -> None:
        who: dict[str, Any] = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": 1}
        if await self.world.log.load(subjects.execution(task.job, task.execution_id)):
            await self.world.given(Started(**who, delivery=1, worker="w"))
        is_doomed = task.job == "doomed"
        answer = proven(
            Report(
                **who,
                delivery=1,
                outcome="failed" if is_doomed else "completed",
                token=task.token,
                error=Failure(type="ValueError") if is_doomed else None,
            )
        )
        subject = subjects.subject_of(answer)
        await self.world.log.publish(subject, answer, message_id=subject)

    async def record(self) -> None:
        log: EventLog = self.world.log
        for stream in RECORDED:
            await Recorder(log, self.history, self.world.clock, stream, gathering=0, past=self.whole).catch_up()

    async def lived(self) -> None:
        """Some executions of each kind, all of them over a day ago but one that is still running."""
        await self.world.define({"name": JOB, "schedule": "0 3 * * *", "function": "f"})
        await self.world.define({"name": "free", "function": "f", "overlap_policy": "allow"})
        once = {"max_attempts": 1}
        await self.world.define({"name": "doomed", "function": "f", "dead_letter": True, "retry": once})
        [definition] = await self.world.log.read("ledger.nightly.defined")
        for day in range(3):
            at = self.world.clock.now() + timedelta(hours=3)
            await self.world.given(Due(job=JOB, scheduled_time=at, definition=definition.sequence))
            await self.world.trigger("free", f"free-{day}")
            await self.world.trigger("doomed", f"doomed-{day}")
            await self.settle()
            self.world.clock.advance(60)
        self.world.clock.advance(2 * DAY.total_seconds())
        await self.world.trigger("free", "open")
        await self.world.run(*self.stages)
        await self.record()

    async def held(self) -> list[StoredMessage]:
        """Return the content of the streams."""
        return await everything(self.streams)

    async def ever(self) -> list[StoredMessage]:
        """Return everything that was ever stored."""
        return await everything(self.whole)


async def everything(log: Any) -> list[StoredMessage]:  # noqa: ANN401 - a stored log of either kind
    return [
        message
        for stream in STREAMS
        async for portion in log.messages(stream, after=0, upto=(await log.extent(stream)).last)
        for message in portion
    ]


@asynccontextmanager
async def a_site(folder: Path) -> AsyncIterator[Site]:
    async with open_history(f"sqlite:///{folder / 'history.db'}") as history:
        it = Site(history)
        await it.lived()
        yield it


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(tmp_path) as it:
        yield it


async def archive_all(site: Site) -> None:
    while await site.archiver().run_once(site.world.clock.now()):
        pass


def kinds(messages: Sequence[StoredMessage]) -> set[str]:
    return {message.subject.split(".")[0] for message in messages}


async def test_heartbeats_leave_with_their_execution(site: Site) -> None:
    """Executions that are over lose their heartbeats, archived or not; others keep them."""
    archived = [m.subject.split(".") for m in await site.ever() if m.subject.startswith("execution.")]
    await archive_all(site)
    await site.world.trigger("free", "just-over")
    await site.settle()
    executions = [m.subject.split(".") for m in await site.ever() if m.subject.startswith("execution.")]
    scopes = {(tokens[1], tokens[2]) for tokens in executions}
    over = {(tokens[1], tokens[2]) for tokens in executions if tokens[3] in ENDS}
    await site.world.trigger("free", "at-work")
    await site.world.run(*site.stages)
    at_work = {(t.job, t.execution_id) for t in await site.world.stored(Dispatched)} - over
    assert len(at_work) >= 1
    assert len(over) > len({tokens[2] for tokens in archived}) - 2
    identity: dict[str, Any] = {"step": "main", "attempt": 1}
    for job, execution_id in scopes | at_work:
        identity |= {"job": job, "execution_id": execution_id}
        beat = HeartbeatDetails(**identity, time=site.world.clock.now(), details=7)
        await site.world.log.publish(output_subject(beat), beat, message_id=execution_id)
    progress = StepProgress(**identity, time=site.world.clock.now(), fraction=0.5)
    await site.world.log.publish(output_subject(progress), progress, message_id="progress")
    removing = FinishedHeartbeats(site.world.log, site.streams, InMemoryStreamPurge(site.world.log))
    assert await removing.run_once() == len(over)
    left = {tuple(m.subject.split(".")[1:3]) for m in await site.world.log.read("heartbeat.>")}
    assert left == at_work
    assert await removing.run_once() == 0
    assert len(await site.world.log.read("progress.>")) == 1


# --- what leaves, what stays, and that all is read as one ------------------------------------------------------------


async def test_finished_executions_move_to_the_archive_readable(site: Site) -> None:
    before = await site.ever()
    executions = [m.subject.split(".") for m in before if m.subject.startswith("execution.")]
    [open_one] = {tokens[2] for tokens in executions} - {tokens[2] for tokens in executions if tokens[3] in ENDS}
    await archive_all(site)
    left = await site.held()

    assert await site.ever() == before
    assert len(left) < len(before) / 2
    assert {m.subject.split(".")[2] for m in left if m.subject.startswith("execution.")} == {open_one}
    assert [m.subject for m in left if m.stream is Stream.LEDGER and ".due" in m.subject] == ["ledger.nightly.due"]
    assert len([m for m in left if m.subject == "lock.nightly.acquired"]) == 1
    assert kinds(left) == {
        "ledger",
        "trigger",
        "execution",
        "lock",
        "cron",
        "dead-letter",
    }  # the trigger of the open one

    [segment] = await site.archive().segments()
    assert segment.executions == 9
    assert segment.upto == {
        stream: int((await site.world.projections.get(Bucket.CURSORS, stream.value) or [b"0"])[0]) for stream in STREAMS
    }


async def test_waiting_task_holds_back_no_later_execution(site: Site) -> None:
    [waiting] = [task for task in await site.world.stored(Dispatched) if task.token not in site._answered]
    site._answered.add(waiting.token)  # no worker has its function
    site.world.clock.advance(60)
    await site.world.trigger("free", "later")
    await site.settle()
    site.world.clock.advance(2 * DAY.total_seconds())
    await archive_all(site)
    left = {m.subject.split(".")[2] for m in await site.held() if m.subject.startswith("execution.")}
    assert left == {waiting.execution_id}


async def logged(site: Site) -> dict[str, list[str]]:
    """Store two lines of each attempt, also with a wrong seal; return the lines of each execution."""
    texts: dict[str, list[str]] = {}
    for task in await site.world.stored(Dispatched):
        identity: dict[str, Any] = {"job": task.job, "execution_id": task.execution_id, "step": task.step}
        for number in range(2):
            line = OutputLine(
                **identity, attempt=task.attempt, time=site.world.clock.now(), text=f"{task.token} {number}"
            )
            await site.world.log.publish(
                subjects.output_of(line, task.token), line, message_id=f"{task.token}-{number}"
            )
            site.world.log.receive(subjects.output_of(line, "guessed"), line.encode())
            texts.setdefault(task.execution_id, []).append(line.text)
    return texts


async def shown(site: Site, execution_id: str, after: int = 0, limit: int = MAX_LINES) -> ExecutionOutput:
    match = await find(site.world.log, execution_id, stored=site.whole)
    return await read_output(site.world.log, match, after=after, limit=limit, stored=site.whole)


@pytest.mark.parametrize("max_bytes", [1, finished_output.MAX_BYTES])
async def test_lines_are_kept_with_their_execution(site: Site, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished_output, "MAX_BYTES", max_bytes)
    texts = await logged(site)
    while await site.archiver(keeps_output=True).run_once(site.world.clock.now()):
        pass
    output = site.world.log.stream(Stream.OUTPUT)
    for entry in list(output.entries_after(0))[::2]:
        output.remove(entry.sequence)  # the stream may still hold some of the lines
    executions = {m.subject.split(".")[2] for m in await site.ever() if m.subject.endswith((".completed", ".failed"))}
    assert executions < {*texts}
    for execution_id in executions:
        found = await shown(site, execution_id)
        assert [line.text for line in found.lines] == texts[execution_id]
        first, second = found.lines
        assert (await shown(site, execution_id, limit=1)).lines == (first,)
        assert (await shown(site, execution_id, after=first.sequence)).lines == (second,)
        assert (await shown(site, execution_id, after=second.sequence)).lines == ()


async def test_lines_that_were_changed_are_refused(site: Site) -> None:
    await logged(site)
    await site.archiver(keeps_output=True).run_once(site.world.clock.now())
    [segment] = await site.archive().segments()
    [lines] = segment.output
    ended = next(m.subject.split(".")[2] for m in await site.ever() if m.subject.endswith(".completed"))
    name = lines.name(segment.number)
    site.store._objects[name] = site.store._objects[name][:-1] + b"x"
    with pytest.raises(ArchiveDamaged, match=name):
        await shown(site, ended)
    del site.store._objects[name]
    with pytest.raises(ArchiveDamaged, match=name):
        await shown(site, ended)


async def test_lines_stay_in_their_stream_by_default(site: Site) -> None:
    await logged(site)
    await archive_all(site)
    assert [segment.output for segment in await site.archive().segments()] == [()]


async def test_every_definition_stays(site: Site) -> None:
    for hour in (4, 5):
        await site.world.define({"name": JOB, "schedule": f"0 {hour} * * *", "function": "f"})
    await site.settle()
    site.world.clock.advance(2 * DAY.total_seconds())
    defined = [m for m in await site.held() if m.subject == "ledger.nightly.defined"]
    await archive_all(site)
    assert [m for m in await site.held() if m.subject == "ledger.nightly.defined"] == defined
    assert len(defined) == 3


async def test_one_execution_is_found_where_it_is(site: Site) -> None:
    [first, *_] = [m for m in await site.ever() if subjects.matches("execution.*.*.completed.>", f"{m.subject}.end")]
    scope = subjects.execution_scope(first.subject)
    before = [m async for some in site.whole.messages(Stream.LOG, scope, after=0, upto=10_000) for m in some]
    await archive_all(site)
    assert await site.world.log.load(scope) == []
    assert [m async for some in site.whole.messages(Stream.LOG, scope, after=0, upto=10_000) for m in some] == before
    assert len(before) == 3


async def test_a_second_sweep_goes_on_behind_the_first(site: Site) -> None:
    await archive_all(site)
    state, _ = await site.archive().state()
    await archive_all(site)
    assert (await site.archive().state())[0].head == state.head

    await site.settle()  # the open one ends
    site.world.clock.advance(2 * DAY.total_seconds())
    before = await site.ever()
    await archive_all(site)
    first, second = await site.archive().segments()
    assert (second.number, second.previous, second.executions) == (2, first.name, 1)
    assert await site.ever() == before
    assert not any(m.subject.startswith("execution.") for m in await site.held())


async def test_young_messages_stay_within_the_size_limit(site: Site) -> None:
    young = replace(KEEPING, hot_window=10 * DAY)
    before = await site.held()
    assert await site.archiver(keeping=young).run_once(site.world.clock.now()) is False
    assert await site.held() == before

    few = replace(KEEPING, hot_window=10 * DAY, max_messages=30)
    await site.archiver(keeping=few).run_once(site.world.clock.now())
    in_the_log = [m for m in await site.held() if m.stream is Stream.LOG]
    assert len(in_the_log) <= 30 < len([m for m in before if m.stream is Stream.LOG])


async def test_inputs_leave_before_their_stream_is_full(site: Site) -> None:
    held = [m for m in await site.held() if m.stream is Stream.REPORTS]
    size = sum(len(message.subject) + len(message.body) for message in held)
    young = replace(KEEPING, hot_window=10 * DAY, max_input_bytes=2 * size)
    await site.archiver(keeping=young).run_once(site.world.clock.now())
    assert [m for m in await site.held() if m.stream is Stream.REPORTS] == held
    await site.archiver(keeping=replace(young, max_input_bytes=size)).run_once(site.world.clock.now())
    left = [m for m in await site.held() if m.stream is Stream.REPORTS]
    assert 0 < len(left) <= len(held) / 2 + 1


@pytest.mark.parametrize("leads", [False, True])
async def test_archiver_works_as_long_as_it_leads(site: Site, monkeypatch: pytest.MonkeyPatch, *, leads: bool) -> None:
    archiver, calls = site.archiver(), list[str]()
    if leads:
        await archiver._leadership.run_once()

    async def heartbeats() -> int:
        calls.append("heartbeats")
        return 0

    async def once(_: datetime) -> bool:
        calls.append("portion")
        return len(calls) < 3

    monkeypatch.setattr(archiver._heartbeats, "run_once", heartbeats)
    monkeypatch.setattr(archiver, "run_once", once)
    monkeypatch.setattr(site.world.clock, "sleep", AsyncMock(side_effect=Crash))
    with pytest.raises(Crash):
        await archiver.run()
    assert calls == (["heartbeats", "portion", "portion"] if leads else [])


async def test_archiver_without_work_writes_nothing(site: Site) -> None:
    await archive_all(site)
    before = await site.archive().state()
    assert await site.archiver().run_once(site.world.clock.now()) is False
    assert await site.archive().state() == before


async def test_requests_from_outside_leave_by_their_number(site: Site) -> None:
    for _ in range(10):
        site.world.log.receive("public.trigger.free", b"{}")
    await site.settle()
    site.world.clock.advance(LEAST.total_seconds() + CLOCK_SKEW.total_seconds())
    before = await site.held()
    young = replace(KEEPING, hot_window=10 * DAY, max_outside_messages=20)
    await site.archiver(keeping=young).run_once(site.world.clock.now())
    assert await site.held() == before
    await site.archiver(keeping=replace(young, max_outside_messages=6)).run_once(site.world.clock.now())
    left = await site.held()
    assert len([m for m in left if m.stream is Stream.INPUTS]) == 3
    assert [m for m in left if m.stream is not Stream.INPUTS] == [m for m in before if m.stream is not Stream.INPUTS]


async def test_nothing_leaves_before_every_copy_reads_its_cursor(site: Site) -> None:
    before = await site.held()
    log, clock = cursor(Stream.LOG), site.world.clock
    run = asyncio.create_task(site.archiver(keeping=replace(KEEPING, settling=2.0)).run_once(clock.now()))
    while await site.world.projections.get(Bucket.CURSORS, log) is None:
        await settle()
    clock.advance(KEPT)
    await settle()
    assert await site.held() == before
    clock.advance(2.0)
    await run
    assert len(await site.held()) < len(before)


async def test_nothing_leaves_before_durables_and_history_saw_it(site: Site) -> None:
    before = await site.held()
    late = site.world.durable(site.world.retrier.subscriptions[0])
    undecided = next(m for m in before if m.subject.startswith("report.doomed."))
    late.again(undecided.sequence)
    await site.archiver().run_once(site.world.clock.now())
    archived = [m for segment in await site.archive().segments() for m in await site.archive().messages(segment)]
    assert not any(m.sequence >= undecided.sequence for m in archived if m.stream is Stream.REPORTS)
    assert all(m.time < undecided.time for m in archived)

    await site.world.run(*site.stages)
    await site.history.forget()
    await site.archiver().run_once(site.world.clock.now())
    assert len([m for s in await site.archive().segments() for m in await site.archive().messages(s)]) == len(archived)


# --- failures --------------------------------------------------------------------------------------------------------


async def test_absent_store_delays_and_is_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, archiver, clock = await site.held(), site.archiver(), site.world.clock
    await archiver._leadership.run_once()
    failed_at = clock.now()
    with monkeypatch.context() as away:
        away.setattr(site.store, "put", AsyncMock(side_effect=ArchiveUnavailable("the archive: no answer")))
        away.setattr(clock, "sleep", AsyncMock(side_effect=[None, Crash]))
        with pytest.raises(Crash), capture_logs() as lines:
            await archiver.run()
    assert [line["action"] for line in lines] == ["archive-waits", "archive-waits"]
    assert await site.held() == before
    state, _ = await site.archive().state()
    assert state.failure == ArchivingFailure(since=failed_at, reason="ArchiveUnavailable: the archive: no answer")

    await archive_all(site)
    state, _ = await site.archive().state()
    assert (state.failure, state.number) == (None, 1)
    assert len(await site.held()) < len(before)


async def test_segment_that_cannot_be_read_never_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, put = await site.held(), site.store.put

    async def garble(name: str, body: bytes) -> None:
        await put(name, body[:-9] if name.endswith(".gz") else body)

    monkeypatch.setattr(site.store, "put", garble)
    with pytest.raises(ArchiveDamaged):
        await site.archiver().run_once(site.world.clock.now())
    assert (await site.archive().state())[0] == State()
    assert await site.held() == before


async def test_manifest_of_another_segment_is_refused(site: Site) -> None:
    await archive_all(site)
    [segment] = await site.archive().segments()
    name = f"{segment.name}.json"
    site.store._objects[name] = site.store._objects[name].replace(b'"number": 1', b'"number": 2')
    with pytest.raises(ArchiveDamaged, match="it describes the segment 00000002-"):
        await site.ever()


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, True])
async def test_it_may_die_at_any_point(tmp_path: Path, *, behind: bool) -> None:
    at, is_over = 0, False
    while not is_over:
        at += 1
        async with a_site(tmp_path / f"{behind}-{at}") as site:
            before, fate = await site.ever(), Fate(at, behind)
            try:
                await site.archiver(fate).run_once(site.world.clock.now())
                is_over = True
            except Crash:
                assert await site.ever() == before
            await archive_all(site)
            assert await site.ever() == before
            archived = [m for s in await site.archive().segments() for m in await site.archive().messages(s)]
            left = await site.held()
            assert len(archived) + len(left) == len(before)  # none is in both, and none in two segments
    assert at > 10


async def test_of_two_archivers_one_adds_a_segment(site: Site) -> None:
    before = await site.ever()
    slow, now = site.archiver(), site.world.clock.now()
    state, revision = await slow._archive.state()
    found, upto, _ = await slow._eligibility.look(state.upto, now)
    await site.archiver().run_once(now)
    segment = await slow._archive.write(found, state, upto, ORIGIN)
    with pytest.raises(OutdatedState):
        await slow._archive.move(state.model_copy(update={"head": segment.name}), expect=revision)
    assert await site.ever() == before


@pytest.mark.parametrize(
    "change", [{"previous": None}, {"previous": f"00000001-{'0' * 16}"}, {"executions": 7}], ids=str
)
async def test_manifest_that_was_replaced_is_refused(site: Site, change: dict[str, Any]) -> None:
    """A writer of the bucket could hide or replace all older segments."""
    await archive_all(site)
    await site.world.trigger("free", "later")
    await site.settle()
    site.world.clock.advance(2 * DAY.total_seconds())
    await archive_all(site)
    *_, newest = await site.archive().segments()
    assert newest.number > 1
    name = f"{newest.name}.json"
    site.store._objects[name] = newest.model_copy(update=change).model_dump_json(indent=2).encode()
    with pytest.raises(ArchiveDamaged, match=f"{name} of the archive was changed"):
        await site.archive().segments()


async def test_foreign_manifest_purges_nothing(site: Site) -> None:
    before, archiver, now = await site.held(), site.archiver(), site.world.clock.now()
    state, _ = await archiver._archive.state()
    found, upto, _ = await archiver._eligibility.look(state.upto, now)
    segment = await archiver._archive.write(found, state, upto, ORIGIN)
    name = f"{segment.name}.json"
    site.store._objects[name] = segment.model_copy(update={"streams": {}}).model_dump_json().encode()
    with pytest.raises(ArchiveDamaged):
        await site.archiver().run_once(now)
    assert await site.held() == before


async def test_a_segment_that_was_changed_is_refused(site: Site) -> None:
    await archive_all(site)
    [segment] = await site.archive().segments()
    name = f"{segment.name}.jsonl.gz"
    site.store._objects[name] = site.store._objects[name][:-1] + b"x"
    with pytest.raises(ArchiveDamaged):
        await site.ever()
    del site.store._objects[name]
    with pytest.raises(ArchiveDamaged):
        await Archive(site.store, site.world.projections).messages(segment)


# --- nothing comes back to life --------------------------------------------------------------------------------------


async def test_any_redelivery_adds_nothing(site: Site) -> None:
    """As for a durable recreated from the first stored message."""
    before = await site.ever()
    await archive_all(site)
    for stage in site.stages:
        for subscription in stage.subscriptions:
            again = [
                Delivery(message)
                for message in before
                if message.stream is subscription.stream
                and any(subjects.matches(one, message.subject) for one in subscription.filters)
            ]
            await site.world.outcomes.apply(subscription, again)
            assert all(one.answers in (["ack"], ["term"]) for one in again)
    await site.world.run(*site.stages)
    assert await site.ever() == before


async def test_report_on_an_archived_execution_adds_no_event(site: Site) -> None:
    tasks = await site.world.stored(Dispatched)
    await archive_all(site)
    await site.settle()
    facts = [m for m in await site.ever() if not m.subject.startswith("report.")]
    for task in tasks:
        # Long behind the window in which the log knows a message id again.
        answer = proven(
            Report(
                job=task.job,
                execution_id=task.execution_id,
                outcome="completed",
                step=task.step,
                attempt=task.attempt,
                delivery=1,
                token=ids.report_token(KEY, task.execution_id, task.step, task.attempt),
            )
        )
        await site.world.log.publish(subjects.subject_of(answer), answer, message_id=f"again-{task.execution_id}")
    await site.world.run(*site.stages)
    assert [m for m in await site.ever() if not m.subject.startswith("report.")] == facts


async def test_a_lock_whose_holder_is_archived_is_free(site: Site) -> None:
    await archive_all(site)
    await site.world.trigger(JOB, "the next one")
    await site.settle()
    assert [fact.trigger for fact in await site.world.stored(Admitted) if fact.job == JOB] == ["event"]
    assert [type(fact).__name__ for fact in await site.world.stored(Terminal) if fact.job == JOB] == ["Completed"]


# --- the history -----------------------------------------------------------------------------------------------------


async def test_history_is_rebuilt_from_archive_and_streams(site: Site) -> None:
    before = (await site.history.executions(), await site.history.dead_letters(), await site.history.jobs())
    await archive_all(site)
    await site.history.forget()
    await site.record()
    assert (await site.history.executions(), await site.history.dead_letters(), await site.history.jobs()) == before


async def test_history_forgets_rows_after_its_retention(site: Site) -> None:
    brief = replace(KEEPING, history=DAY)
    assert len((await site.history.executions()).rows) == 10
    while await site.archiver(keeping=brief).run_once(site.world.clock.now()):
        pass
    assert len((await site.history.executions()).rows) == 1


async def test_policy_precedes_the_retention_of_the_settings(site: Site) -> None:
    now = site.world.clock.now()
    await site.world.given(PolicyDefined(job_history_retention_days=1))
    while await site.archiver(keeping=KEEPING).run_once(now):
        pass
    assert len((await site.history.executions()).rows) == 1


async def test_newest_policy_stays_in_the_stream(site: Site) -> None:
    first = await site.world.log.append(PolicyDefined(job_timeout=1.0), expect=0)
    await site.world.log.append(PolicyDefined(previous=first), expect=first)
    site.world.clock.advance(3 * DAY.total_seconds())
    await archive_all(site)
    [left] = await site.world.log.read("policy.>")
    assert left.sequence > first


async def test_without_purge_permission_everything_stays_and_is_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InMemoryStreamPurge, "obstacle", lambda _: "the server is too old")
    before = await site.held()
    with capture_logs() as lines:
        await site.archiver(keeping=replace(KEEPING, history=DAY)).run_once(site.world.clock.now())
    assert await site.held() == before
    assert (await site.archive().state())[0] == State()
    assert [(line["action"], line["reason"]) for line in lines] == [("archiver-cannot", "the server is too old")]
    assert len((await site.history.executions()).rows) == 1  # the history forgets in any case


async def test_unique_keys_leave_with_their_executions(site: Site) -> None:
    """The worker of the site completes what is not for later."""

    async def enqueue(key: str, *execution_ids: str, days: int = 0) -> None:
        definition = JobDefinition(name="ojs.work", function="work", overlap_policy="allow")
        start_at = site.world.clock.now() + days * DAY if days else None
        for execution_id in execution_ids:
            rule = UniqueRule(key=key * 64)
            wanted = Enqueued(execution_id=execution_id, definition=definition, start_at=start_at, unique=rule)
            subject = subjects.subject_of(wanted)
            await site.world.log.publish(subject, wanted, message_id=subject)
        await site.settle()

    await enqueue("a", "first")
    await enqueue("b", "second")
    await enqueue("c", "third", days=30)
    await enqueue("a", "fourth", days=30)
    site.world.clock.advance(2 * DAY.total_seconds())
    await archive_all(site)
    keys = [m.subject.split(".")[2][0] for m in await site.held() if m.subject.startswith("unique.")]
    assert keys == ["c", "a"]
    for key in "abc":
        await enqueue(key, f"late-{key}", days=30)
    skipped = {fact.execution_id for fact in await site.world.stored(Skipped) if fact.reason == "duplicate"}
    assert skipped == {"late-a", "late-c"}
