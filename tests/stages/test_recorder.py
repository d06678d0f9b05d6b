"""The recorder, over a log that gives what a test says and a history in a file that has its troubles."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar, cast

import pytest
from typing_extensions import override

from tests.domain.given import ID, JOB, NOON, admitted, recorded, report, started
from tocsin import subjects
from tocsin.adapters.sql.engine import connect
from tocsin.adapters.sql.history import SqlHistory, open_history
from tocsin.adapters.sql.migration import migrate
from tocsin.domain.events import Completed, Message, Recorded
from tocsin.ports import Batch, Encoded, EventLog, LogUnavailable, SequenceConflict, StaleRead
from tocsin.stages.recorder import stage as recorder
from tocsin.stages.recorder.stage import GATHER_INTERVAL_S, LONGEST_PAUSE_S, SHORTEST_PAUSE_S, Recorder
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, InMemoryStoredLog

LOG = recorded(
    [
        admitted(),
        started(),
        report("completed"),
        Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1),
    ]
)


class ScriptedLog:
    """A log whose followers get its messages one by one, and come to an end with it (a real one would wait)."""

    def __init__(self, messages: Sequence[Recorded[Message]] = LOG) -> None:
        self.messages = messages
        self.followed_from: list[int] = []

    async def follow(self, stream: Stream, *filters: str, after: int, **_: object) -> AsyncIterator[Batch]:
        """Return the messages of an `EventLog` as its followers receive them."""
        assert stream is Stream.LOG
        self.followed_from.append(after)
        for message in self.messages[after:]:
            if any(matches(subject_filter, message.subject) for subject_filter in filters):
                yield Batch([message], caught_up=message is self.messages[-1], upto=message.sequence)

    async def load(self, scope: str) -> list[Recorded[Message]]:
        assert scope == subjects.policy()
        return []


def matches(subject_filter: str, subject: str) -> bool:
    *head, last = subject_filter.split(".")
    tokens = subject.split(".")
    assert last == ">"
    return len(tokens) > len(head) and all(a in {"*", b} for a, b in zip(head, tokens, strict=False))


class Enough(Exception):
    """The test has seen enough."""


class Clock:
    """Sleeps at once, and raises `Enough` instead of sleeping once too often."""

    def __init__(self, sleeps: int) -> None:
        self.left = sleeps
        self.slept: list[float] = []

    def now(self) -> datetime:
        return NOON

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        if not self.left:
            raise Enough
        self.left -= 1
        self.slept.append(seconds)


class TroubledHistory(SqlHistory):
    """Raise a scripted error before each recording; `None` raises none."""

    troubles: Sequence[Exception | None] = ()

    @override
    async def record(
        self,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),
    ) -> None:
        trouble, *self.troubles = self.troubles or (None,)
        if trouble is not None:
            raise trouble
        await super().record(stream, messages, after=after, upto=upto, opens=opens, encoded=encoded)


H = TypeVar("H", bound=SqlHistory)


def opened(kind: type[H], path: Path) -> H:
    engine = connect(f"sqlite:///{path / 'history.db'}")
    migrate(engine)
    return kind(engine)


@asynccontextmanager
async def troubled(path: Path, *troubles: Exception | None) -> AsyncIterator[TroubledHistory]:
    history = opened(TroubledHistory, path)
    history.troubles = troubles
    try:
        yield history
    finally:
        await history.close()


async def run(log: ScriptedLog, history: SqlHistory, *, sleeps: int = 0) -> list[float]:
    """Run a recorder until it has slept so often; how long it slept."""
    clock = Clock(sleeps)
    with pytest.raises(Enough):
        await Recorder(cast("EventLog", log), history, clock, Stream.LOG, gathering=0, past=None).run()
    return clock.slept


async def test_it_records_what_matters_and_leaves_out_inputs(tmp_path: Path) -> None:
    log = ScriptedLog()
    async with troubled(tmp_path) as history:
        places = [
            batch.upto
            async for batch in Recorder(
                cast("EventLog", log), history, Clock(0), Stream.LOG, gathering=0, past=None
            ).recorded()
        ]

        assert places == [1, 2, 4]
        assert [row.status for row in (await history.executions()).rows] == ["completed"]
        assert await history.offset(Stream.LOG) == 4


@pytest.mark.parametrize(("most", "places"), [(100, [4]), (2, [2, 4])])
async def test_available_events_are_recorded_together_within_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, places: list[int]
) -> None:
    monkeypatch.setattr(recorder, "MAX_TRANSACTION", most)
    async with troubled(tmp_path) as history:
        recording = Recorder(cast("EventLog", ScriptedLog()), history, Clock(1), Stream.LOG, past=None)

        assert [(batch.upto, await history.offset(Stream.LOG)) async for batch in recording.recorded()] == [
            (place, place) for place in places
        ]
        assert [row.status for row in (await history.executions()).rows] == ["completed"]


async def test_events_are_gathered_after_a_transaction(tmp_path: Path) -> None:
    async with troubled(tmp_path) as history:
        recording = Recorder(cast("EventLog", ScriptedLog()), history, clock := Clock(1), Stream.LOG, past=None)
        assert [batch.upto async for batch in recording.recorded()] == [4]
        assert clock.slept == [GATHER_INTERVAL_S]


async def test_it_catches_up_beside_another_recorder(tmp_path: Path) -> None:
    async with troubled(tmp_path, None, SequenceConflict()) as history:
        clock, log = Clock(sleeps=1), InMemoryEventLog()
        sequence = await log.append(admitted(), expect=0)
        recording = Recorder(log, history, clock, Stream.LOG, gathering=0, past=InMemoryStoredLog(log))
        await recording.catch_up()
        assert clock.slept == [SHORTEST_PAUSE_S]
        assert await history.offset(Stream.LOG) == sequence
        await recording.catch_up()
        assert await history.offset(Stream.LOG) == sequence


async def test_catching_up_through_a_lagging_replica_fails(tmp_path: Path) -> None:
    async with troubled(tmp_path) as history:
        log = InMemoryEventLog()
        await log.append(admitted(), expect=0)
        past = InMemoryStoredLog(log, lag=1)
        with pytest.raises(StaleRead):
            await Recorder(log, history, Clock(0), Stream.LOG, gathering=0, past=past).catch_up()
        assert await history.offset(Stream.LOG) == 0


async def test_it_goes_on_from_the_stored_place(tmp_path: Path) -> None:
    log = ScriptedLog(LOG[:2])
    async with troubled(tmp_path) as history:
        await run(log, history)
        assert [row.status for row in (await history.executions()).rows] == ["running"]

        log.messages = LOG
        await run(log, history)
        assert [row.status for row in (await history.executions()).rows] == ["completed"]
        assert log.followed_from == [0, 2]


async def test_recorder_continues_after_a_faster_recorder(tmp_path: Path) -> None:
    log = ScriptedLog()

    class Overtaken(TroubledHistory):
        @override
        async def offset(self, stream: Stream) -> int:
            place = await super().offset(stream)
            if place == 0:
                async with open_history(f"sqlite:///{tmp_path / 'history.db'}") as other:
                    await other.record(Stream.LOG, LOG[:2], after=0, upto=2)
            return place

    history = opened(Overtaken, tmp_path)
    try:
        await run(log, history, sleeps=1)

        assert log.followed_from == [0, 2]
        assert [(row.status, row.duration_ms) for row in (await history.executions()).rows] == [("completed", 2_000)]
    finally:
        await history.close()


@pytest.mark.parametrize("trouble", [RuntimeError("no database"), LogUnavailable(), SequenceConflict()])
async def test_failures_lose_nothing_and_back_off(tmp_path: Path, trouble: Exception) -> None:
    log = ScriptedLog()
    async with troubled(tmp_path, *[trouble] * 7) as history:
        slept = await run(log, history, sleeps=7)

        assert slept == [0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
        assert [row.status for row in (await history.executions()).rows] == ["completed"]


async def test_backoff_resets_after_a_success(tmp_path: Path) -> None:
    trouble = RuntimeError("no database")
    async with troubled(tmp_path, trouble, trouble, None, trouble) as history:
        assert await run(ScriptedLog(), history, sleeps=3) == [SHORTEST_PAUSE_S, 2 * SHORTEST_PAUSE_S, SHORTEST_PAUSE_S]
        assert await history.offset(Stream.LOG) == 4


async def test_it_ends_when_cancelled(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    class WaitingLog(ScriptedLog):
        @override
        async def follow(self, stream: Stream, *filters: str, after: int, **_: object) -> AsyncIterator[Batch]:
            async for batch in super().follow(stream, *filters, after=after):
                yield batch
            waiting.set()
            await asyncio.Event().wait()

    async with troubled(tmp_path) as history:
        loop = Recorder(cast("EventLog", WaitingLog()), history, Clock(0), Stream.LOG, gathering=0, past=None)
        running = asyncio.ensure_future(loop.run())
        await waiting.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await history.offset(Stream.LOG) == 4
