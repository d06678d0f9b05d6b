"""The archive of the log of commits: what leaves the stream, what stays, and how readers go on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.commits.processes import SEAL
from tests.commits.test_memory import Work
from tests.commits.test_snapshots import Place
from tocsin import subjects
from tocsin.adapters import archived_commit_log
from tocsin.adapters.archived_commit_log import ArchivedCommitLog
from tocsin.adapters.commit_stored import CommitStoredLog
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryStoredLog, InMemoryStreamPurge
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.archive.commit_reader import CommitReader
from tocsin.archive.log_archive import ArchiveDamaged, LogArchive, Origin, commits_of
from tocsin.domain.commit import LogHead, Position, Seal
from tocsin.domain.events import Trigger
from tocsin.engine.commit_writer import Chain
from tocsin.engine.fold import EVENTS, Fold
from tocsin.engine.fresh_fold import load_fold
from tocsin.engine.snapshot_rows import FoldCopy
from tocsin.engine.snapshots import FoldPlace
from tocsin.engine.stage import CommitStorage
from tocsin.ports import LogUnavailable, SequenceConflict
from tocsin.ports.commit_log import StoredBody
from tocsin.services.health.checks.archive import failures, held, store
from tocsin.services.health.findings import CheckContext
from tocsin.settings import Settings
from tocsin.stages.archiver import log_archiver
from tocsin.stages.archiver.log_archiver import Keeping, LogArchiver
from tocsin.subjects import Stream
from tocsin.testing import ManualClock

HOT = timedelta(hours=1)
ORIGIN = Origin(installation="i", root="tocsin", version="1")
SOURCE = commits_of(0)


class Archiving:
    """An installation whose commits an archiver takes."""

    def __init__(self, work: Work | None = None, *, max_messages: int = 1_000_000) -> None:
        self.place = Place(work or Work())
        self.work = self.place.work
        self.clock: ManualClock = self.work.installation.clock
        self.base = self.work.installation.log
        self.store = InMemoryArchiveStore()
        self.inputs = InMemoryEventLog(self.clock)
        self.archive = LogArchive(self.store, self.place.projections)
        self.log = ArchivedCommitLog(self.base, self.archive)
        self.work.installation.log = self.log  # type: ignore[assignment] # processes read what is archived too
        self.recorded = 1_000_000
        self.max_messages = max_messages
        self.keeps_output = False

    def archiver(self, **keeping: Any) -> LogArchiver:  # noqa: ANN401 - limits
        commits = CommitStorage(
            log=self.log,
            partition=0,
            seal=SEAL,
            key="k1",
            archive=self.archive,
            folding=lambda: Copying(self),
            snapshots=self.place.snapshots,
            takers={Stream.REQUESTS: frozenset({"planner"})},
            followers={"recorder": self.place_of_recorder},
        )
        return LogArchiver(
            commits,
            InMemoryStoredLog(self.inputs),
            InMemoryStreamPurge(self.inputs),
            self.clock,
            origin=ORIGIN,
            keeping=Keeping(hot_window=HOT, max_messages=self.max_messages, output=self.keeps_output, **keeping),
        )

    async def place_of_recorder(self) -> int:
        return self.recorded

    async def stored(self) -> list[StoredBody]:
        """Return the bodies in the stream."""
        return list(self.base._stored[0])

    async def everything(self) -> list[StoredBody]:
        """Return the bodies that a reader from the beginning gets."""
        return await self.read(after=0)

    async def read(self, *, after: int) -> list[StoredBody]:
        found: list[StoredBody] = []
        async with aclosing(self.log.follow(0, after=after)) as batches:
            async for batch in batches:
                found += batch.bodies
                if batch.caught_up:
                    return found
        raise AssertionError

    async def day(self) -> None:
        """Work, two snapshots, an hour in which all of it grows old, and a little more work."""
        for number in range(3):
            await self.work.trigger("job", f"{self.clock.now()}-{number}")
            await self.work.finish()
        for _ in range(2):
            await self.work.runner.rest()
            await self.place.save()
        self.clock.advance(HOT.total_seconds() * 1.1)
        await self.work.trigger("job", f"{self.clock.now()}")
        await self.work.runner.rest()

    async def run(self) -> None:
        archiver = self.archiver()
        while await archiver.run_once(self.clock.now()):
            pass


class Copying:
    """A process that folds the log."""

    log_bytes = 0

    def __init__(self, archiving: Archiving) -> None:
        self._archiving = archiving

    @property
    def head(self) -> LogHead:
        return self._archiving.work.process.chain.head

    def leads(self, stage: str) -> bool:
        return bool(stage)

    async def copy(self) -> FoldPlace:
        return FoldCopy.of(self._archiving.work.fold), self.head, self.head

    def note(self, *_: object) -> "asyncio.Future[None]":
        raise AssertionError


@pytest.fixture
async def given() -> Archiving:
    archiving = Archiving()
    await archiving.work.define("job")
    await archiving.day()
    return archiving


async def test_commits_move_into_the_archive_byte_for_byte(given: Archiving) -> None:
    before = await given.stored()
    await given.run()
    after = await given.stored()
    assert 0 < len(after) < len(before)
    assert await given.everything() == before
    assert await given.read(after=before[2].sequence) == before[3:]
    chain = Chain(SEAL, LogHead("k1"))
    for segment in await given.archive.segments(SOURCE):
        for message in await given.archive.messages(segment):
            assert chain.take(StoredBody(message.sequence, message.time, message.body)) is not None
        assert chain.head == segment.head


async def test_later_segments_continue_and_readers_begin_between_them(given: Archiving) -> None:
    for _ in range(3):
        await given.run()
        await given.day()
    everything = await given.everything()
    assert [each.sequence for each in everything] == list(range(1, len(everything) + 1))
    segments = await given.archive.segments(SOURCE)
    assert [segment.index for segment in segments] == [1, 2, 3]
    assert [segment.first for segment in segments[1:]] == [segment.last + 1 for segment in segments[:-1]]
    assert await given.archive.segments(SOURCE, after=segments[1].last) == segments[2:]


async def test_fresh_fold_begins_in_the_archive(given: Archiving) -> None:
    await given.run()
    assert len(await given.stored()) < len(await given.everything())
    fresh = await load_fold(given.log, 0, SEAL, LogHead("k1"), given.work.process.chain.head, Fold())
    assert fresh is not None
    assert fresh.states == given.work.fold.states
    process = given.work.installation.process()
    await process.read_on()
    assert process.chain.head == given.work.process.chain.head


async def test_nothing_leaves_before_two_snapshots_are_named() -> None:
    given = Archiving()
    await given.work.define("job")
    await given.work.trigger("job", "one")
    await given.work.runner.rest()
    await given.place.save()
    given.clock.advance(2 * HOT.total_seconds())
    before = await given.stored()
    await given.run()
    assert await given.stored() == before
    assert (await given.archive.state())[0].last(SOURCE) == before[-1].sequence  # it waits in the archive


async def test_young_commits_stay(given: Archiving) -> None:
    await given.run()
    await given.work.trigger("job", "young")
    young = (await given.stored())[-1]
    await given.run()
    assert (await given.stored())[-1] == young
    assert (await given.archive.state())[0].last(SOURCE) < young.sequence


async def test_too_many_commits_leave_before_they_are_old() -> None:
    given = Archiving(max_messages=3)
    await given.work.define("job")
    for number in range(8):
        await given.work.trigger("job", f"n{number}")
    await given.work.finish()
    for _ in range(2):
        await given.work.runner.rest()
        await given.place.save()
    given.clock.advance(timedelta(minutes=3).total_seconds())
    before = await given.stored()
    await given.run()
    assert len(await given.stored()) == 3
    assert await given.everything() == before


async def test_newest_commit_never_leaves() -> None:
    given = Archiving()
    await given.work.define("job")
    await given.day()
    given.clock.advance(10 * HOT.total_seconds())
    newest = (await given.stored())[-1]
    await given.run()
    assert (await given.stored())[-1] == newest
    await given.base.purge(0, upto=newest.sequence)
    await given.work.trigger("job", "later")  # its guard still has what it names
    assert (await given.stored())[-1].sequence > newest.sequence


@pytest.mark.parametrize("has_place", [True, False])
async def test_stage_that_stands_still_holds_its_events(given: Archiving, has_place: bool) -> None:  # noqa: FBT001
    """A stage in a process of its own is down for days, while snapshots are written; perhaps it has only begun."""
    fold = given.work.fold
    before = await given.stored()
    if has_place:
        fold.positions["retrier", EVENTS] = Position(3)
    else:
        del fold.positions["retrier", EVENTS]
        fold.terms_by_stage["retrier"] = fold.terms("retrier")
    given.clock.advance(3 * 24 * 3600)
    await given.run()
    assert await given.stored() == before
    fold.positions["retrier", EVENTS] = fold.position("planner", EVENTS)
    await given.run()
    assert len(await given.stored()) < len(before)


@pytest.mark.parametrize("hours", [1, 25])
async def test_follower_holds_for_a_day(given: Archiving, hours: int) -> None:
    given.recorded = 3
    before = await given.stored()
    await given.run()
    assert await given.stored() == before
    given.clock.advance(hours * 3600)
    await given.run()
    assert (len(await given.stored()) < len(before)) == (hours > 24)
    assert await given.everything() == before


async def test_follower_that_moves_holds_again(given: Archiving) -> None:
    given.recorded = 3
    await given.run()
    before = await given.stored()
    given.clock.advance(23 * 3600)
    given.recorded = 4
    await given.run()
    given.clock.advance(23 * 3600)
    await given.run()
    assert await given.stored() == before


async def test_follower_reads_on_over_what_left_meanwhile(given: Archiving) -> None:
    """The follower stood since before the archiver ran, and its consumer is made again afterwards."""
    before = await given.stored()
    follower = given.log.follow(0, after=0)
    found = list((await anext(follower)).bodies)
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    await given.work.trigger("job", "more")
    await given.day()
    whole = [*before, *[each for each in await given.stored() if each.sequence > before[-1].sequence]]
    await given.run()
    assert (await given.stored())[0].sequence > before[-1].sequence + 1
    while len(found) < len(whole):
        found += (await waiting).bodies
        waiting = asyncio.ensure_future(anext(follower))
    waiting.cancel()
    assert found == whole


async def test_follower_waits_for_an_archive_without_answer(given: Archiving, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await given.everything()
    await given.run()
    state = given.archive.state
    answers = iter([False, False, True])

    async def late() -> Any:  # noqa: ANN401 - the state and its revision
        if not next(answers, True):
            raise LogUnavailable("no answer")
        return await state()

    monkeypatch.setattr(given.archive, "state", late)
    monkeypatch.setattr(archived_commit_log, "PAUSE_S", 0.0)
    given.log.waits = True
    assert await given.everything() == whole


async def test_writer_reads_on_over_what_left_meanwhile(given: Archiving) -> None:
    place = (await given.stored())[1].sequence
    await given.run()
    assert (await given.stored())[0].sequence > place + 1
    stored = await given.log.next(0, after=place)
    assert stored is not None
    assert stored.sequence == place + 1


async def test_of_two_archivers_one_adds_a_segment(given: Archiving) -> None:
    slow = LogArchive(given.store, given.place.projections)
    state, revision = await slow.state()
    await given.run()
    with pytest.raises(SequenceConflict):
        await slow.move(state, expect=revision)
    assert len(await given.archive.segments(SOURCE)) == 1


class Died(Exception):
    """The archiver dies here."""


@pytest.mark.parametrize("call", range(4))
async def test_archiver_may_die_at_any_call(given: Archiving, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Of the calls that change anything: two objects, the state, the purge."""
    before, calls = await given.stored(), 0

    def dying(change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def changed(*arguments: Any, **named: Any) -> object:  # noqa: ANN401 - those of any function
            nonlocal calls
            calls += 1
            if calls == call + 1:
                raise Died
            return await change(*arguments, **named)

        return changed

    with monkeypatch.context() as patch:
        patch.setattr(given.store, "put", dying(given.store.put))
        patch.setattr(given.place.projections, "put", dying(given.place.projections.put))
        patch.setattr(given.base, "purge", dying(given.base.purge))
        with pytest.raises(Died):
            await given.run()
        assert await given.everything() == before
    await given.run()
    assert await given.everything() == before
    assert len(await given.stored()) < len(before)
    assert calls == call + 1


@pytest.mark.parametrize("ending", [".gz", ".json"])
async def test_damaged_segment_is_named_and_nothing_is_removed(given: Archiving, ending: str) -> None:
    async def put(name: str, body: bytes) -> None:
        given.store._objects[name] = body[:-9] if name.endswith(ending) else body

    given.store.put = put  # type: ignore[method-assign]
    before = await given.stored()
    with pytest.raises(ArchiveDamaged):
        await given.run()
    assert await given.stored() == before
    assert not await given.archive.segments(SOURCE)


async def test_segment_that_was_replaced_is_refused(given: Archiving) -> None:
    await given.run()
    [segment] = await given.archive.segments(SOURCE)
    given.store._objects[f"{segment.name}.json"] = given.store._objects[f"{segment.name}.json"].replace(
        b'"last":', b'"last":1'
    )
    with pytest.raises(ArchiveDamaged):
        await LogArchive(given.store, given.place.projections).segments(SOURCE)


async def test_large_log_goes_into_several_segments(given: Archiving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_archiver, "MAX_MESSAGES", 4)
    before = await given.stored()
    await given.run()
    segments = await given.archive.segments(SOURCE)
    assert len(segments) > 2
    assert all(segment.messages <= 4 for segment in segments)
    assert await given.everything() == before


async def test_input_leaves_once_every_stage_took_it(given: Archiving) -> None:
    for number in range(3):
        await given.inputs.publish(subjects.trigger("job"), Trigger(), message_id=f"m{number}")
    given.clock.advance(2 * HOT.total_seconds())
    await given.run()
    assert _sequences(given) == []
    archived = [
        message
        for segment in await given.archive.segments("REQUESTS")
        for message in await given.archive.messages(segment)
    ]
    assert [message.sequence for message in archived] == [1, 2, 3]
    assert {message.subject for message in archived} == {subjects.trigger("job")}
    assert all(message.headers for message in archived)


async def test_input_stays_while_a_stage_has_no_place(given: Archiving) -> None:
    await given.inputs.publish(subjects.trigger("job"), Trigger(), message_id="m")
    del given.work.fold.positions["planner", "REQUESTS"]
    given.work.fold.terms_by_stage["planner"] = given.work.fold.terms("planner")
    given.clock.advance(2 * HOT.total_seconds())
    await given.run()
    assert _sequences(given) == [1]


@pytest.mark.parametrize(("part", "left"), [(2, 8), (1, 4)])
async def test_inputs_leave_before_their_stream_is_full(given: Archiving, part: int, left: int) -> None:
    """Young inputs leave too, once the stream holds more than half of its limit."""
    for number in range(8):
        await given.inputs.publish(subjects.trigger("job"), Trigger(), message_id=f"m{number}")
    given.clock.advance(timedelta(minutes=3).total_seconds())
    size = (await InMemoryStoredLog(given.inputs).extent(Stream.REQUESTS)).size
    await given.archiver(max_input_bytes=part * size).run_once(given.clock.now())
    assert len(_sequences(given)) == left


@pytest.mark.parametrize(("most", "left"), [(-1, 8), (16, 8), (6, 3)])
async def test_requests_from_outside_leave_by_their_number(given: Archiving, most: int, left: int) -> None:
    for number in range(8):
        given.inputs.receive("public.trigger.job", b"{}", message_id=f"m{number}")
    given.clock.advance(timedelta(minutes=3).total_seconds())
    given.work.fold.positions["planner", "INPUTS"] = Position(8)
    await given.archiver(max_outside_messages=most).run_once(given.clock.now())
    assert len(list(given.inputs.stream(Stream.INPUTS).entries_after(0))) == left


def _sequences(given: Archiving) -> Sequence[int]:
    return [entry.sequence for entry in given.inputs.stream(Stream.REQUESTS).entries_after(0)]


async def test_failure_reason_is_stored_until_a_run_succeeds(given: Archiving) -> None:
    archiver = given.archiver()
    await archiver.note(ArchiveDamaged("broken"))
    since = given.clock.now()
    given.clock.advance(60)
    await archiver.note(ArchiveDamaged("broken"))
    failure = (await given.archive.state())[0].failure
    assert failure is not None
    assert (failure.since, failure.reason) == (since, "ArchiveDamaged: broken")
    await given.run()
    assert (await given.archive.state())[0].failure is None


async def test_stage_and_follower_places_are_noted_with_times(given: Archiving) -> None:
    await given.run()
    begun = given.clock.now()
    places = (await given.archive.state())[0].places
    assert places["recorder"].number == given.recorded
    assert places["stage planner"].number == given.work.fold.position("planner", EVENTS).floor
    given.clock.advance(3600)
    await given.work.trigger("job", "more")
    await given.work.runner.rest()
    given.work.fold.positions["retrier", EVENTS] = Position(places["stage retrier"].number)
    await given.run()
    places = (await given.archive.state())[0].places
    assert places["recorder"].since == places["stage retrier"].since == begun
    assert places["stage planner"].since > begun


def examined(given: Archiving) -> CheckContext:
    target = SimpleNamespace(archive=given.archive, settings=Settings())
    return CheckContext(target, SimpleNamespace(), given.clock.now())  # type: ignore[arg-type] # what the checks read


async def test_doctor_names_reader_that_stands_still_a_day(given: Archiving) -> None:
    given.work.fold.positions["retrier", EVENTS] = Position(3)
    await given.run()
    found = await held(examined(given))
    assert found is not None
    assert found.level == "ok"
    given.clock.advance(25 * 3600)
    await given.run()
    found = await held(examined(given))
    assert found is not None
    assert (found.code, found.level) == ("archive-held", "warn")
    assert "stage retrier" in found.what
    assert "stage planner" not in found.what


async def test_doctor_reads_the_newest_segment_of_each_source(given: Archiving) -> None:
    assert await store(examined(given)) is None
    await given.run()
    found = await store(examined(given))
    assert found is not None
    assert found.level == "ok"
    [segment] = await given.archive.segments(SOURCE)
    given.store._objects[f"{segment.name}.gz"] = b"x"
    found = await store(examined(given))
    assert found is not None
    assert found.code == "archive-damaged"
    await given.archiver().note(ArchiveDamaged("broken"))
    found = await failures(examined(given))
    assert found is not None
    assert (found.level, "ArchiveDamaged: broken" in found.what) == ("warn", True)


async def test_handler_output_is_kept_if_settings_request_it(given: Archiving) -> None:
    def say(execution_id: str, text: str) -> None:
        given.inputs.receive(f"output.job.{execution_id}.main.1.seal", text.encode())

    for text in ("a", "b"):
        say("01", text)
        say("02", text)
    given.clock.advance(2 * HOT.total_seconds())
    say("01", "young")
    await given.run()
    assert not await given.archive.lines("01")
    given.keeps_output = True
    await given.run()
    assert [line.body for line in await given.archive.lines("01")] == [b"a", b"b"]
    assert await given.archive.lines("03") == []
    assert len(list(given.inputs.stream(Stream.OUTPUT).entries_after(0))) == 5  # the server removes them by their age


@pytest.mark.parametrize("after", [0, 2, 4, datetime(2026, 1, 1, tzinfo=UTC)])
async def test_stored_log_has_each_input_once(given: Archiving, after: Any) -> None:  # noqa: ANN401 - a sequence or a time
    async def number(_: object = None) -> int:
        return given.work.process.chain.head.number

    async def seal() -> Seal:
        return SEAL

    stored = CommitStoredLog(
        InMemoryStoredLog(given.inputs), CommitReader(given.log, 0, seal, "k1"), given.archive, number
    )
    for count in range(3):
        await given.inputs.publish(subjects.trigger("job"), Trigger(), message_id=f"m{count}")
    given.clock.advance(2 * HOT.total_seconds())
    await given.run()
    for count in range(3, 6):
        await given.inputs.publish(subjects.trigger("job"), Trigger(), message_id=f"m{count}")
    extent = await stored.extent(Stream.REQUESTS)
    assert (extent.first, extent.last, extent.messages) == (1, 6, 6)
    pages = stored.messages(Stream.REQUESTS, "trigger.>", after=after, upto=5)
    found = [message.sequence async for page in pages for message in page]
    first = after + 1 if isinstance(after, int) else 1
    assert found == list(range(first, 6))
    events = [message async for page in stored.messages(Stream.LOG, upto=extent.last * 100) for message in page]
    assert {message.stream for message in events} == {Stream.LOG}
    assert [m.sequence for m in events] == sorted({m.sequence for m in events})
