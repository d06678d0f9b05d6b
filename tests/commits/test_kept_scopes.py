"""Scopes that are in no fold: the history and the newest commits answer as the log does."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.commits.processes import SEAL, Installation, bound
from tests.commits.scripts import Commits, play, script
from tests.commits.server import server
from tocsin import subjects, telemetry
from tocsin.adapters import kept_scopes
from tocsin.adapters.commit_stored import CommitStoredLog
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.kept_scopes import KeptScopes
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.archive import InMemoryArchiveStore
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.routed_log import RoutedLog
from tocsin.adapters.sql.history import SqlHistory, empty_engine
from tocsin.adapters.system_clock import SystemClock
from tocsin.archive.commit_reader import CommitReader
from tocsin.archive.log_archive import LogArchive
from tocsin.bootstrap import connect
from tocsin.bootstrap.commit_process import KEY, PARTITION, CommitProcess
from tocsin.domain.commit import CommitEvent, Seal
from tocsin.domain.events import Message, Recorded
from tocsin.engine.snapshots import Snapshots
from tocsin.ports import EventHistory
from tocsin.stages.recorder.stage import Recorder
from tocsin.subjects import RECORDED, Stream
from tocsin.testing import InMemoryEventLog, InMemoryProjections, InMemoryStoredLog

KEPT = ("execution.", "dead-letter.", "ledger.")
SEEDS = (1, 7, 16, 22, 25)


class Given:
    """A log, a history, and two processes without stages, one with the history and one without."""

    def __init__(self, installation: Installation, history: SqlHistory) -> None:
        self.installation = installation
        self.history = history
        self.by_log = self.view()
        self.by_history = self.view()
        self.by_history.reads.kept = KeptScopes(self._opened)

    async def _opened(self) -> EventHistory:
        return self.history

    def view(self) -> CommitView:
        snapshots = Snapshots(InMemoryProjections(self.installation.clock), b"")
        return CommitView(self.installation.log, PARTITION, self.process().seal, snapshots)

    def process(self) -> CommitProcess:
        log, turns = self.installation.log, InMemoryTurnChannel()
        inputs, clock = InMemoryEventLog(LoopClock()), SystemClock()
        return CommitProcess(log, inputs, clock, b"1" * 32, installation="tocsin", name="test", turns=turns)

    async def record(self, part: float = 1.0) -> None:
        """Have the history record a part of the log."""

        async def shown() -> CommitView:
            return self.by_log

        base = InMemoryEventLog(LoopClock())

        async def sealed() -> Seal:
            return self.process().seal

        async def newest() -> int:
            return await self.by_log.end(Stream.LOG)

        archive = LogArchive(InMemoryArchiveStore(), InMemoryProjections())
        reader = CommitReader(self.installation.log, PARTITION, sealed, KEY)
        stored = CommitStoredLog(InMemoryStoredLog(base), reader, archive, newest)
        for stream in RECORDED:
            upto = round((await stored.extent(stream)).last * part)
            log = RoutedLog(base, shown)
            recorder = Recorder(log, self.history, SystemClock(), stream, past=stored, gathering=0)
            if upto > await self.history.offset(stream):
                async for _ in recorder.recorded(upto=upto):
                    pass


@asynccontextmanager
async def given(installation: Installation) -> AsyncIterator[Given]:
    history = SqlHistory(empty_engine(), installation="tocsin", threads=0)
    it = Given(installation, history)
    async with AsyncExitStack() as stack:
        for view in (it.by_log, it.by_history):
            await stack.enter_async_context(it.process().reading(view))
        yield it
    await history.close()


async def played(seed: int) -> Installation:
    engine = Commits()
    await play(script(seed, 60), engine)
    return engine._installation


@contextmanager
def reads_of_the_log(view: CommitView) -> Iterator[list[int]]:
    """The numbers after which a process reads the log."""
    places, past = list[int](), view.past

    def noted(takes: Any, *, after: int, upto: int) -> Any:  # noqa: ANN401 - as of the view
        if after < upto:
            places.append(after)
        return past(takes, after=after, upto=upto)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "past", noted)
        yield places


async def _of(reading: Any) -> list[Any]:  # noqa: ANN401 - any iterator
    return [one async for one in reading]


def _scope(recorded: Recorded[Message]) -> str:
    return subjects.scope_of(recorded.message)


def plain(messages: Sequence[Recorded[Message]]) -> list[tuple[Any, ...]]:
    return [(one.sequence, one.subject, one.time, one.message) for one in messages]


async def answers(view: CommitView, log: Sequence[Recorded[Message]], kinds: tuple[str, ...] = ("",)) -> dict[str, Any]:
    """Return the answers of a process about every scope of a log."""
    scopes = sorted({subjects.scope_of(one.message) for one in log if one.subject.startswith(kinds)})
    names = sorted({one.subject for one in log if one.subject.startswith(kinds)})
    jobs = sorted({subjects.job_of(one.subject) for one in log if one.subject.startswith(("execution.", "ledger."))})
    any_job = {f"execution.*.{scope.split('.')[2]}.>" for scope in scopes if scope.startswith("execution.")}
    found = dict[str, Any]()
    for scope in [*scopes, *any_job, "execution.none.none.>", "dead-letter.none.none.>", "ledger.none.>"]:
        found[f"load {scope}"] = plain(await view.load(scope))
        found[f"tail {scope}"] = await view.tail(scope)
    for name in [*scopes, *names]:
        last = await view.last(name)
        found[f"last {name}"] = None if last is None else plain([last])
        read, pages = list[Recorded[Message]](), 0
        while page := await view.read(name, after=read[-1].sequence if read else 0, limit=3):
            read, pages = read + page, pages + 1
            assert len(page) <= 3
        found[f"read {name}"] = plain(read)
    for one in log:
        if one.subject.startswith(kinds):
            got = await view.get(subjects.scope_of(one.message), one.sequence)
            found[f"get {one.sequence}"] = None if got is None else plain([got])
    loaded = await view.load_each(*scopes)
    found["load each"] = [plain(facts) for facts in loaded.facts], loaded.upto
    half = log[len(log) // 2]
    for job in jobs:
        for filters in (
            subjects.openings(job),
            subjects.runs(job),
            subjects.ledger_subjects(job, "due", "passed"),
            (subjects.ledger(job),),
        ):
            for after in (0, half.sequence, half.time):
                events = view.reads.past(filters, after=after, upto=len(log) - 2)
                found[f"{filters} {after}"] = [
                    (one.sequence, one.time, one.subject, bytes(one.body)) for one in await _of(events)
                ]
    return found


@pytest.mark.parametrize("part", [0, 0.4, 1])
@pytest.mark.parametrize("seed", SEEDS)
async def test_history_and_later_events_answer_as_the_log(seed: int, part: float) -> None:
    installation = await played(seed)
    log = await installation.events()
    async with given(installation) as it:
        expected = await answers(it.by_log, log)
        await it.record(part)
        assert await answers(it.by_history, log) == expected
        it.by_history._known.clear()
        with reads_of_the_log(it.by_history) as places:
            of_kept = await answers(it.by_history, log, KEPT)
        assert min(places, default=len(log)) >= round(len(log) * part)
        assert of_kept.pop("load each")
        assert of_kept == {name: expected[name] for name in of_kept}


def test_scripts_have_each_kind_of_scope() -> None:
    async def kinds() -> set[str]:
        return {one.subject.split(".")[0] for seed in SEEDS for one in await (await played(seed)).events()}

    assert asyncio.run(kinds()) >= {"execution", "dead-letter", "ledger", "lock", "cron"}


async def test_operator_reads_history_in_a_process_with_stages() -> None:
    installation = await played(1)
    async with given(installation) as it:
        view = it.view()
        view.reads.kept = it.by_history.reads.kept
        async with it.process().running(bound(), view):
            log = await installation.events()
            expected = await answers(it.by_log, log)
            await it.record()
            over = [
                scope for scope in map(_scope, log) if scope.startswith("execution.") and scope not in view.fold.numbers
            ]
            view._left.clear()
            assert over
            with reads_of_the_log(view) as places:
                for scope in over:
                    assert plain(await view.load(scope)) == expected[f"load {scope}"]
            assert min(places, default=len(log)) >= await it.history.offset(Stream.LOG)
            view._known.clear()
            view.reads.kept = None
            with telemetry.bound(stage="matcher"), reads_of_the_log(view) as places:  # no stage reads the whole log
                assert [await view.load(scope) for scope in over] == [[] for _ in over]
            assert not places


@pytest.mark.parametrize("seed", SEEDS)
async def test_execution_without_job_is_read_beyond_the_history(seed: int) -> None:
    """The recorder lags, and the execution is over and has left the fold."""
    installation = await played(seed)
    async with given(installation) as it:
        view = it.view()
        view.reads.kept = it.by_history.reads.kept
        async with it.process().running(bound(), view):
            await it.record(0.5)
            log = await installation.events()
            scopes = {scope for scope in map(_scope, log) if scope.startswith("execution.")}
            for scope in scopes - view.fold.numbers.keys():
                _, _, execution_id, _ = scope.split(".")
                found = await view.load(subjects.execution(subjects.ANY, execution_id))
                assert plain(found) == plain(await it.by_log.load(scope))


async def test_process_behind_the_history_shows_what_it_read() -> None:
    installation = await played(22)
    log = await installation.events()
    async with given(installation) as it:
        await it.record()
        view = it.by_history
        view._number = half = len(log) // 2
        for scope in {_scope(one) for one in log if one.subject.startswith(KEPT)}:
            found = [*await view._events_of(scope), *await view.read(scope), await view.last(scope)]
            assert all(one is None or one.sequence <= half for one in found)


async def test_executions_expired_from_history_are_read_from_log() -> None:
    installation = await played(7)
    log = await installation.events()
    async with given(installation) as it:
        expected = await answers(it.by_log, log)
        await it.record()
        day = timedelta(days=1)
        while await it.history.expire(installation.clock.now() + 2 * day, after=day):
            pass
        assert (await it.history.count()) < len(
            {one.subject.split(".")[2] for one in log if ".admitted" in one.subject}
        )
        assert await answers(it.by_history, log) == expected


async def test_history_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    installation = await played(16)
    log = await installation.events()
    async with given(installation) as it:
        expected = await answers(it.by_log, log)
        await it.record()
        fails = iter(range(10_000))
        read = it.history.read

        async def sometimes(query: Any) -> Any:  # noqa: ANN401 - as of the history
            if next(fails) % 3 == 2:
                raise OSError("the database went away")
            return await read(query)

        monkeypatch.setattr(it.history, "read", sometimes)
        monkeypatch.setattr(kept_scopes, "PAGE", 2)
        monkeypatch.setattr(kept_scopes, "RETRY_AFTER_S", 0.0)
        assert await answers(it.by_history, log) == expected


async def test_scope_that_is_remembered_goes_on() -> None:
    installation = await played(25)
    log = await installation.events()
    ends = [one for one in log if one.subject.startswith("execution.")]
    scope = subjects.scope_of(ends[-1].message)
    async with given(installation) as it:
        await it.record()
        before = await it.by_history.load(scope)
        assert before
        reader = installation.process(())
        await reader.read_on()
        event = CommitEvent(scope.replace(">", "strange"), "test", "@", msgspec.Raw(b'{"v":99}'))
        at = installation.clock.now()
        await reader.writer.append(SEAL.write(reader.chain.head, writer="test", at=at, taken={}, events=[event]))
        for view in (it.by_log, it.by_history):
            with pytest.raises(subjects.DecodeError):
                await view.load(scope)


async def test_processes_on_nats_answer_as_the_log(nats_url: str, tmp_path: Path) -> None:
    async with server(nats_url, tmp_path) as it:
        tocsin = it.tocsin
        tocsin.start()
        await tocsin.ready()
        await it.define(name="tick", function="f", schedule="* * * * * *", overlap_policy="allow")
        await it.define(name="skips", function="f")
        await it.define(name="fails", function="f", timeout="1s", dead_letter=True)
        for job in ("skips", "skips", "fails"):
            await it.trigger(job)

        async def has_fired() -> bool:
            return (await it.subjects()).count("ledger.tick.due") >= 4

        await tocsin.until(has_fired)
        for program in tocsin.programs:
            program.kill()
        for kind in ("tick", "skips"):
            begun = next(name for name in await it.subjects() if name.startswith(f"execution.{kind}."))
            code, shown = await tocsin.call("executions", "show", begun.split(".")[2])
            assert (code, shown["job"]) == (0, kind), shown
        code, _ = await tocsin.call("why", "tick")
        assert code == 0
        async with connect(tocsin.settings) as by_log, connect(tocsin.settings) as by_history:
            assert by_log.commits is not None
            assert by_history.commits is not None
            log, kept = await by_log.commits.view(), await by_history.commits.view()
            log.reads.kept = None
            assert kept.reads.kept is not None
            events = [
                Recorded(subjects.decode(one.subject, bytes(one.body)), one.subject, one.sequence, one.time)
                for one in await _of(log.past(bool, after=0, upto=await log.end(Stream.LOG)))
                if not one.subject.startswith("log.")
            ]
            history = await kept.reads.kept._open()
            assert history is not None
            recorded = min([await history.offset(stream) for stream in RECORDED])
            assert recorded > 0
            expected = await answers(log, events)
            assert await answers(kept, events) == expected
            kept._known.clear()
            with reads_of_the_log(kept) as places:
                of_kept = await answers(kept, events, KEPT)
            assert min(places, default=events[-1].sequence) >= recorded
            assert of_kept.pop("load each")
            assert of_kept == {name: expected[name] for name in of_kept}
