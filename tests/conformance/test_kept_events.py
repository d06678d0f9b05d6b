"""The behaviour of every history that keeps the events themselves: real servers, each test in an empty database."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from sqlalchemy import Engine, event

from tests.conformance.test_history import A_FAILURE, A_SUCCESS, BOOM, Databases, facts_of, story
from tests.domain.given import NOON
from tocsin import subjects
from tocsin.adapters.sql import events as sql_events
from tocsin.adapters.sql.events import MAX_ROW_EVENTS
from tocsin.adapters.sql.history import SqlHistory
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Deleted, Due, FannedOut, Message, Passed, Paused, Recorded, RetryScheduled
from tocsin.ports import Encoded, EventHistory, KeptEvent, KeptEvents, KeptPart
from tocsin.subjects import Stream

DAY = timedelta(days=1)


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Makes empty databases."""
    made = Databases(request.param)
    yield made
    made.close()


@asynccontextmanager
async def opened(databases: Databases) -> AsyncIterator[SqlHistory]:
    async with databases() as database, database.open("here") as history:
        assert isinstance(history, EventHistory)
        yield cast("SqlHistory", history)


def stored(facts: Sequence[Message], first: int = 1, at: datetime = NOON) -> list[KeptEvent]:
    """Facts as a log stores them, one a second."""
    return [
        KeptEvent(first + n, subjects.subject_of(fact), at + n * timedelta(seconds=1), msgspec.Raw(fact.encode()))
        for n, fact in enumerate(facts)
    ]


async def record(
    history: SqlHistory,
    events: Sequence[KeptEvent],
    *,
    stream: Stream = Stream.LOG,
    size: int = 1_000,
    opens: bool = True,
) -> None:
    """Events in transactions of a size."""
    for start in range(0, len(events), size):
        part = events[start : start + size]
        messages = [
            Recorded(subjects.decode(one.subject, bytes(one.body)), one.subject, one.sequence, one.time)
            for one in part
            if b'"v":99' not in bytes(one.body)
        ]
        after = await history.offset(stream)
        await history.record(stream, messages, after=after, upto=part[-1].sequence, opens=opens, encoded=part)


async def kept(history: EventHistory, *filters: str, **more: Any) -> KeptEvents:  # noqa: ANN401 - as the port's
    part = KeptPart.of(*filters)
    assert part is not None
    return await history.events(part, **more)


def plain(events: Sequence[Encoded]) -> list[tuple[int, str, datetime, bytes]]:
    return [(one.sequence, one.subject, one.time, bytes(one.body)) for one in events]


def woven(*stories: Sequence[Message]) -> list[Message]:
    """The facts of stories in turn."""
    longest = max(map(len, stories))
    return [story[n] for n in range(longest) for story in stories if n < len(story)]


def ledger(job: str) -> list[Message]:
    definition = JobDefinition(name=job, function="f", schedule="* * * * *")
    times = [NOON + n * timedelta(minutes=1) for n in range(6)]
    return [
        Defined(job=job, definition=definition),
        Due(job=job, scheduled_time=times[0], definition=1),
        Paused(job=job, definition=1),
        Passed(job=job, start=times[0], until=times[2], reason="paused", count=2, definition=1),
        Due(job=job, scheduled_time=times[3], definition=1),
        Deleted(job=job),
    ]


@pytest.mark.parametrize("size", [1, 3, 1_000])
async def test_events_of_each_part_are_kept_unchanged(databases: Databases, size: int) -> None:
    events = stored(
        woven(
            story(*A_SUCCESS, execution_id="1"),
            story(*A_FAILURE, execution_id="2"),
            story(*A_SUCCESS, execution_id="3", job="a.b"),
        )
    )
    ledgers = stored(woven(ledger("nightly"), ledger("a.b")))
    async with opened(databases) as history:
        await record(history, events, size=size)
        await record(history, ledgers, stream=Stream.LEDGER, size=size)
        for log, filters in (
            (events, ["execution.nightly.1.>"]),
            (events, ["execution.*.1.>"]),
            (events, ["execution.nightly.2.>"]),
            (events, ["dead-letter.nightly.2.>"]),
            (events, ["dead-letter.nightly.1.>"]),
            (events, ["execution.a_b.1.>"]),
            (events, ["execution.a_b.3.started.>"]),
            (events, ["execution.nightly.*.started.>", "execution.nightly.*.failed"]),
            (events, ["execution.a_b.*.>"]),
            (ledgers, ["ledger.nightly.>"]),
            (ledgers, ["ledger.a_b.due"]),
            (ledgers, ["ledger.a_b.defined", "ledger.a_b.passed"]),
            (ledgers, ["ledger.none.>"]),
        ):
            takes = subjects.any_of(filters)
            wanted = plain([one for one in log if takes(one.subject)])
            found = await kept(history, *filters)
            assert (plain(found.events), found.upto, found.is_whole) == (wanted, len(log), True), filters
            newest = {subject: place for place, (_, subject, _, _) in enumerate(wanted)}
            part = KeptPart.of(*filters)
            assert part is not None
            last = await history.newest(part)
            assert plain(last.events) == [wanted[place] for place in sorted(newest.values())], filters
            assert (last.upto, last.is_whole) == (len(log), True)


def test_parts_that_no_index_finds_are_named() -> None:
    for filters in (
        ["execution.>"],
        ["execution.*.*.started"],
        ["ledger.*.due"],
        ["lock.a.*"],
        ["policy.scheduler.>"],
        ["execution.a.1.>", "execution.a.2.>"],
        ["execution.a.1.>", "dead-letter.a.1.>"],
        [],
    ):
        assert KeptPart.of(*filters) is None


@pytest.mark.parametrize("filter_", ["execution.nightly.*.>", "execution.nightly.1.>", "ledger.nightly.>"])
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_pages_have_each_event_once(
    databases: Databases, filter_: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_events, "CHUNK", 2)
    stories = [story(*A_SUCCESS, execution_id=str(n)) for n in range(1, 4)]
    log = stored(ledger("nightly") * 3 if filter_.startswith("ledger") else woven(*stories))
    stream = subjects.stream_of(log[0].subject)
    since = log[len(log) // 2].time
    takes = subjects.any_of((filter_,))
    async with opened(databases) as history:
        await record(history, log, stream=stream, size=4)
        for begin in (None, since):
            found: list[KeptEvent] = []
            while page := (
                await kept(history, filter_, after=found[-1].sequence if found else 0, since=begin, limit=limit)
            ).events:
                found += page
            wanted = [one for one in log if takes(one.subject) and (begin is None or one.time >= begin)]
            assert plain(found) == plain(wanted)


async def test_another_installation_keeps_its_own(databases: Databases) -> None:
    events = stored(story(*A_SUCCESS))
    async with databases() as database, database.open("here") as here, database.open("there") as there:
        await record(cast("SqlHistory", here), events)
        assert plain((await kept(cast("SqlHistory", here), "execution.*.1.>")).events) == plain(events)
        assert await kept(cast("SqlHistory", there), "execution.*.1.>") == KeptEvents([], 0)


async def test_unreadable_events_are_kept(databases: Databases) -> None:
    begin, *rest = stored(story(*A_SUCCESS))
    strange = KeptEvent(2, "execution.nightly.1.strange", NOON, msgspec.Raw(b'{"v":99,"text":"\\u0000\xc3\xa9"}'))
    later = [KeptEvent(one.sequence + 1, one.subject, one.time, one.body) for one in rest]
    async with opened(databases) as history:
        await record(history, [begin, strange, *later])
        assert plain((await kept(history, "execution.nightly.1.>")).events) == plain([begin, strange, *later])


async def test_a_transaction_has_one_statement_for_events(databases: Databases) -> None:
    statements = list[str]()

    def note(*context: Any) -> None:  # noqa: ANN401 - what SQLAlchemy hands over
        statements.append(str(context[2]))

    async with opened(databases) as history:
        event.listen(Engine, "before_cursor_execute", note)
        try:
            await record(history, stored(woven(*(story(*A_SUCCESS, execution_id=str(n)) for n in range(20)))))
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    of_events = [statement for statement in statements if "scheduler_execution_events" in statement]
    assert [statement.split(" (", maxsplit=1)[0] for statement in of_events] == [
        "INSERT INTO scheduler_execution_events"
    ]
    assert not any("scheduler_removed_events" in statement for statement in statements)


async def test_a_long_execution_is_never_written_again(databases: Databases) -> None:
    first, *_ = story("admitted")
    retries = [
        RetryScheduled(
            job="nightly", execution_id="1", step="main", attempt=n, error=BOOM, delay=1, next_attempt_at=NOON
        )
        for n in range(1, 2_000)
    ]
    events = stored([first, *retries])
    written = 0

    def note(*context: Any) -> None:  # noqa: ANN401 - what SQLAlchemy hands over
        nonlocal written
        if "INTO scheduler_execution_events" in str(context[2]):
            rows = context[3] if isinstance(context[3], list) else [context[3]]
            written += sum(len(row[-1]) for row in rows)
            assert all(row[-1].count(b'"v":') <= MAX_ROW_EVENTS for row in rows)

    async with opened(databases) as history:
        event.listen(Engine, "before_cursor_execute", note)
        try:
            await record(history, events[:500], size=20)
            await record(history, events[500:], size=1_500)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert plain((await kept(history, "execution.nightly.1.>")).events) == plain(events)
    assert written < 2 * sum(len(one.body) + len(one.subject) for one in events)


async def test_events_leave_with_their_execution(databases: Databases) -> None:
    old, letter, later, never = (
        ids.trigger_id("nightly", name, NOON + days * DAY)
        for name, days in (("old", 0), ("letter", 0), ("later", 9), ("never", 9))
    )
    events = stored(
        [
            *story(*A_SUCCESS, execution_id=old),
            *story(*A_FAILURE, execution_id=letter),
            *story("admitted", execution_id=later),
        ]
    )
    async with opened(databases) as history:
        await record(history, events)
        assert (await kept(history, "execution.nightly.*.>")).is_whole
        assert (await kept(history, f"execution.nightly.{never}.>")).is_whole
        assert await history.expire(NOON + 3 * DAY, after=DAY) == 2
        # An execution whose dead letter is open keeps its events.
        assert plain((await kept(history, "execution.nightly.*.>", since=NOON)).events) == plain(
            [one for one in events if old not in one.subject and one.subject.startswith("execution.")]
        )
        assert (await kept(history, f"execution.*.{letter}.>")).is_whole
        assert len((await kept(history, f"dead-letter.nightly.{letter}.>")).events) == 1
        # Of what left, the history cannot tell whether it was.
        gone = await kept(history, f"execution.nightly.{old}.>")
        assert (gone.events, gone.is_whole) == ([], False)
        assert not (await kept(history, f"execution.*.{old}.>")).is_whole
        assert (await kept(history, f"execution.nightly.{never}.>")).is_whole
        assert (await kept(history, f"execution.*.{never}.>")).is_whole
        assert (await kept(history, f"execution.another.{old}.>")).is_whole
        last = len(A_SUCCESS)
        assert not (await kept(history, "execution.nightly.*.>", since=NOON)).is_whole
        assert not (await kept(history, "execution.nightly.*.>", after=last - 1)).is_whole
        assert not (await kept(history, f"execution.nightly.{old}.>", after=last - 1)).is_whole
        assert (await kept(history, "execution.nightly.*.>", since=NOON + DAY)).is_whole
        assert (await kept(history, "execution.nightly.*.>", after=len(events))).is_whole

        await record(history, stored(story("resolved", execution_id=letter), first=99))
        assert await history.expire(NOON + 3 * DAY, after=DAY) == 1
        assert not (await kept(history, f"execution.*.{letter}.>")).is_whole
        assert (await kept(history, f"dead-letter.nightly.{letter}.>")).events == []


async def test_a_fan_out_leaves_with_its_executions(databases: Databases) -> None:
    fanned = FannedOut(
        job="nightly", execution_id="0", scheduled_time=NOON, trigger="cron", definition=1, map=1, shards=("a",)
    )
    admitted, *rest = story(*A_SUCCESS)
    plan = msgspec.structs.replace(cast("Any", admitted).plan, shard="a", occurrence="0")
    events = stored([fanned, msgspec.structs.replace(cast("Any", admitted), plan=plan), *rest])
    async with opened(databases) as history:
        await record(history, events)
        found = await kept(history, "execution.nightly.0.>")
        assert (plain(found.events), found.is_whole) == (plain(events[:1]), True)
        await history.expire(NOON + 3 * DAY, after=DAY)
        assert await kept(history, "execution.nightly.0.>") == KeptEvents([], len(events), is_whole=False)


async def test_old_decisions_on_a_time_leave(databases: Databases) -> None:
    of_job = stored(ledger("nightly"))
    async with opened(databases) as history:
        await record(history, of_job, stream=Stream.LEDGER)
        await record(history, stored(story(*A_SUCCESS)))
        await history.expire(NOON + 3 * DAY, after=DAY)
        found = await kept(history, "ledger.nightly.>", since=NOON)
        assert plain(found.events) == plain(
            [one for one in of_job if one.sequence != 2]
        )  # the newest of each kind stays
        assert not found.is_whole
        assert not (await kept(history, "ledger.nightly.due", after=1)).is_whole
        assert (await kept(history, "ledger.nightly.due", after=2)).is_whole
        assert (await kept(history, "ledger.nightly.due", since=NOON + 3 * DAY)).is_whole
        assert (await kept(history, "ledger.nightly.defined", "ledger.nightly.paused")).is_whole
        part = KeptPart.of("ledger.nightly.>")
        assert part is not None
        newest = await history.newest(part)
        assert (plain(newest.events), newest.is_whole) == (plain([of_job[0], *of_job[2:]]), True)


async def test_what_the_policy_keeps_out_is_not_kept(databases: Databases) -> None:
    events = stored([*story("admitted", execution_id="1"), *story(*A_FAILURE, execution_id="2")])
    async with opened(databases) as history:
        await record(history, events[:1])
        await record(history, events[1:], opens=False)
        assert plain((await kept(history, "execution.*.1.>")).events) == plain(events[:1])
        kept_out = await kept(history, "execution.*.2.>")
        assert (kept_out.events, kept_out.is_whole) == ([], True)  # only its letter, which is whole
        assert not (await kept(history, "execution.nightly.*.>", since=NOON)).is_whole


async def test_events_before_a_begun_execution_are_missed(databases: Databases) -> None:
    """A recorder that kept no events recorded the beginning."""
    events = stored(story(*A_SUCCESS))
    async with opened(databases) as history:
        messages = [Recorded(facts_of("1")["admitted"], events[0].subject, 1, NOON)]
        await history.record(Stream.LOG, messages, after=0, upto=1)
        await record(history, events[1:])
        assert not (await kept(history, "execution.nightly.1.>")).is_whole


async def test_forgotten_events_are_recorded_again(databases: Databases) -> None:
    events, of_job = stored(story(*A_SUCCESS)), stored(ledger("nightly"))
    async with opened(databases) as history:
        for _ in range(2):
            await record(history, events)
            await record(history, of_job, stream=Stream.LEDGER)
            assert plain((await kept(history, "execution.nightly.1.>")).events) == plain(events)
            assert plain((await kept(history, "ledger.nightly.>")).events) == plain(of_job)
            await history.forget()
            assert await kept(history, "execution.nightly.1.>") == KeptEvents([], 0)
            assert await kept(history, "ledger.nightly.>") == KeptEvents([], 0)
