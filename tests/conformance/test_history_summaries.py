"""Summaries of every history: real servers, each test in an empty database."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.test_history import Databases, EmptyDatabase
from tests.domain.given import NOON, plan
from tests.properties import examples
from tocsin import subjects
from tocsin.adapters.redis import summaries as redis_summaries
from tocsin.domain.events import (
    Admitted,
    Cancelled,
    Completed,
    DeadLettered,
    Dispatched,
    Failed,
    Failure,
    JobState,
    Lost,
    Message,
    Recorded,
    Recovered,
    Resolved,
    Skipped,
    Started,
)
from tocsin.domain.execution_record import Recoveries
from tocsin.ports import History
from tocsin.ports.queries import DeadLetterQuery, DeadLetterSort, every
from tocsin.ports.summaries import MAX_ERROR, End, EndCounts, HandOver, HandOverCount, HandOvers, QueueCounts
from tocsin.subjects import Stream

MINUTE: Final = timedelta(minutes=1)


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "redis"])
def empty_database(request: pytest.FixtureRequest) -> Iterator[EmptyDatabase]:
    """Makes empty databases."""
    databases = Databases(request.param)
    yield databases
    databases.close()


def life(
    number: int, end: str, *, job: str = "nightly", at: datetime = NOON, took: timedelta = MINUTE, definition: int = 1
) -> list[tuple[Message, datetime]]:
    """Return the events of an execution that was scheduled at an instant, with their times."""
    who: dict[str, Any] = {"job": job, "execution_id": f"{number:04}"}
    what: dict[str, Any] = {**who, "scheduled_time": at, "trigger": "cron"}
    step: dict[str, Any] = {"step": "main", "attempt": 1}
    if end == "skipped":
        return [(Skipped(**what, reason="overlap_skip", definition=definition), at + took)]
    events: list[tuple[Message, datetime]] = [(Admitted(**what, plan=plan().changed(definition=definition)), at)]
    if end == "pending":
        return events
    task = Dispatched(**what, **step, max_attempts=1, function="f", timeout=30, token="")
    events += [(task, at), (Started(**who, **step, delivery=1, worker="w"), at)]
    error = Failure(type="ValueError", message="x" * 2 * MAX_ERROR)
    ends: dict[str, Message] = {
        "completed": Completed(**what, **step),
        "failed": Failed(**what, **step, error=error),
        "cancelled": Cancelled(**what, reason="by hand"),
    }
    return events if end == "running" else [*events, (ends[end], at + took)]


async def record(history: History, *lives: Sequence[tuple[Message, datetime]]) -> None:
    """Record executions after those that are recorded."""
    place = await history.offset(Stream.LOG)
    events = [event for of_execution in lives for event in of_execution]
    facts = [
        Recorded(fact, subjects.subject_of(fact), place + number, at) for number, (fact, at) in enumerate(events, 1)
    ]
    await history.record(Stream.LOG, facts, after=place, upto=place + len(facts))


async def test_empty_history_has_no_summaries(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        summaries = history.summaries
        assert await summaries.ends(NOON, limit=10, by_job=True) == EndCounts(NOON, {})
        assert await summaries.oldest("running", limit=10) == []
        assert await summaries.newest_of(["nightly"], limit=10) == {"nightly": []}
        assert await summaries.failed_jobs(failures=10, limit=10) == []


async def test_ends_are_counted_by_minute_status_and_definition(empty_database: EmptyDatabase) -> None:
    second = timedelta(seconds=1)
    async with empty_database() as database, database.open() as history:
        await record(
            history,
            life(1, "completed", took=59 * second),
            life(2, "completed", took=58 * second),
            life(3, "completed", took=60 * second),
            life(4, "completed", took=60 * second, definition=2),
            life(5, "failed", took=60 * second),
            life(6, "skipped", took=60 * second, job="other"),
            life(7, "cancelled", took=-second),
            life(8, "running"),
            life(9, "pending"),
        )
        next_minute = NOON + MINUTE
        assert await history.summaries.ends(NOON, limit=10, by_job=True) == EndCounts(
            NOON,
            {
                "completed": {
                    End(NOON, "nightly", 1): 2,
                    End(next_minute, "nightly", 1): 1,
                    End(next_minute, "nightly", 2): 1,
                },
                "failed": {End(next_minute, "nightly", 1): 1},
                "skipped": {End(next_minute, "other", 1): 1},
            },
        )
        assert await history.summaries.ends(NOON, limit=10, by_job=False) == EndCounts(
            NOON,
            {
                "completed": {End(NOON): 2, End(next_minute): 2},
                "failed": {End(next_minute): 1},
                "skipped": {End(next_minute): 1},
            },
        )


async def test_too_many_ends_are_counted_from_later_on(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, *(life(n, "completed", at=NOON + n * MINUTE) for n in range(5)))
        await record(history, life(5, "failed"), life(6, "failed", at=NOON + 3 * MINUTE))
        for run, by_job in ((("nightly", 1), True), ((), False)):
            counts = await history.summaries.ends(NOON, limit=3, by_job=by_job)
            assert counts.since == NOON + 4 * MINUTE
            assert counts.counts == {
                "completed": {End(NOON + n * MINUTE, *run): 1 for n in (4, 5)},
                "failed": {End(NOON + 4 * MINUTE, *run): 1},
            }


async def test_executions_of_a_queue_are_counted_by_state(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        assert await history.summaries.of_queue("default", NOON) == QueueCounts({}, {})
        await record(
            history,
            life(1, "completed"),
            life(2, "completed", at=NOON - 5 * MINUTE),
            life(3, "failed"),
            life(4, "cancelled", at=NOON - 5 * MINUTE),
            life(5, "skipped"),
            life(6, "running"),
            life(7, "pending"),
            life(8, "pending"),
        )
        expected: dict[JobState, int] = {"completed": 2, "discarded": 1, "cancelled": 1, "active": 1, "available": 2}
        assert await history.summaries.of_queue("default", NOON) == QueueCounts(
            expected, {"completed": 1, "discarded": 1}
        )
        await record(history, life(8, "running")[1:], life(6, "completed")[3:])
        counts = await history.summaries.of_queue("default", NOON)
        assert counts.states == {**expected, "completed": 3, "available": 1}
        assert await history.summaries.of_queue("mail", NOON) == QueueCounts({}, {})
        assert await history.expire(NOON + 60 * MINUTE, after=30 * MINUTE)
        assert (await history.summaries.of_queue("default", NOON)).states == {"active": 1, "available": 1}


async def test_states_are_kept_over_a_restart(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database:
        async with database.open() as history:
            await record(history, life(1, "running"), life(2, "pending"))
        async with database.open() as history:
            await record(history, life(1, "completed")[3:])
            assert (await history.summaries.of_queue("default", NOON)).states == {"completed": 1, "available": 1}


ENDS = st.lists(
    st.tuples(
        st.sampled_from(("completed", "failed", "skipped", "cancelled", "running")),
        st.integers(-120, 600),
        st.sampled_from(("a", "b")),
    ),
    max_size=25,
)


@given(ENDS)
@settings(max_examples=examples(15), deadline=None)
async def test_each_end_is_counted_in_one_bucket(
    empty_database: EmptyDatabase, ends: list[tuple[str, int, str]]
) -> None:
    async with empty_database() as database, database.open() as history:
        await record(
            history,
            *(life(n, end, took=timedelta(seconds=s), job=job) for n, (end, s, job) in enumerate(ends)),
        )
        counts = (await history.summaries.ends(NOON, limit=100, by_job=True)).counts
        expected = Counter((end, job) for end, seconds, job in ends if end != "running" and seconds >= 0)
        found: Counter[tuple[str, str]] = Counter()
        by_minute: dict[str, Counter[End]] = {status: Counter() for status in counts}
        for status, of_status in counts.items():
            for key, count in of_status.items():
                found[status, str(key.job_name)] += count
                by_minute[status][End(key.minute)] += count
                assert key.minute.second == 0
                assert key.minute >= NOON
        assert found == expected
        assert (await history.summaries.ends(NOON, limit=100, by_job=False)).counts == by_minute


async def test_oldest_executions_of_a_status_come_first(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, *(life(n, "running", at=NOON - n * MINUTE) for n in range(4)), life(9, "pending"))
        heads = await history.summaries.oldest("running", limit=2)
        assert [head.execution_id for head in heads] == ["0003", "0002"]
        assert (heads[0].status, heads[0].started_at, heads[0].completed_at) == ("running", NOON - 3 * MINUTE, None)
        [pending] = await history.summaries.oldest("pending", limit=2)
        assert (pending.execution_id, pending.started_at, pending.definition) == ("0009", None, 1)


async def test_newest_executions_of_jobs_agree_with_rows(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        ends = ("completed", "failed", "skipped", "running", "pending")
        await record(history, *(life(n, end, at=NOON + n * MINUTE) for n, end in enumerate(ends)))
        await record(history, life(9, "completed", job="other"))
        newest = await history.summaries.newest_of(["nightly", "absent", "other"], limit=4)
        assert [head.execution_id for head in newest["nightly"]] == ["0004", "0003", "0002", "0001"]
        assert (newest["absent"], [head.execution_id for head in newest["other"]]) == ([], ["0009"])
        for head in newest["nightly"]:
            row = await history.execution(head.execution_id)
            assert row is not None
            names = ("job_name", "trigger", "status", "scheduled_time", "started_at", "completed_at", "duration_ms")
            assert all(getattr(head, name) == getattr(row, name) for name in (*names, "definition"))
            assert head.error == (row.error and row.error[:MAX_ERROR])


async def test_failed_jobs_come_by_their_last_failure(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        for number, job in enumerate(("a", "b", "c", "b")):
            await record(history, life(number, "failed", job=job, at=NOON + number * MINUTE))
        await record(history, life(8, "completed", job="d"), life(9, "running", job="e"))
        summaries = history.summaries
        assert await summaries.failed_jobs(failures=10, limit=10) == ["b", "c", "a"]
        assert await summaries.failed_jobs(failures=10, limit=2) == ["b", "c"]
        assert await summaries.failed_jobs(failures=2, limit=10) == ["b", "c"]


def recovered(number: int, recovery: int) -> tuple[Message, datetime]:
    """Return the recovery of an execution that was lost."""
    lost = (Lost(what="admitted", since=NOON),)
    fact = Recovered(job="nightly", execution_id=f"{number:04}", recovery=recovery, lost=lost, recovered_at=NOON)
    return fact, NOON


async def test_hand_overs_are_counted_in_groups(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        completed, failed, pending = life(1, "completed"), life(2, "failed"), life(3, "pending")
        lost_for_good = Failed(
            job="nightly", execution_id="0004", scheduled_time=NOON, trigger="cron", reason="abandoned"
        )
        await record(
            history,
            [*completed[:2], recovered(1, 1), *completed[2:]],
            failed,
            [*pending, recovered(3, 1), recovered(3, 2)],
            [*life(4, "pending"), recovered(4, 1), (lost_for_good, NOON + MINUTE)],
            life(5, "pending", at=NOON + MINUTE),
            life(6, "skipped"),
            life(7, "running", job="other.job", definition=2),
            life(8, "completed", at=NOON - MINUTE),
        )
        none = Recoveries()
        everything = {
            HandOver("nightly", 1, "completed", True, False): HandOverCount(1, Recoveries(1, 1)),
            HandOver("nightly", 1, "failed", True, False): HandOverCount(1, none),
            HandOver("nightly", 1, "pending", False, True): HandOverCount(1, Recoveries(2, 0, 1)),
            HandOver("nightly", 1, "failed", False, False): HandOverCount(1, Recoveries(1, 0, 1, 1)),
            HandOver("nightly", 1, "pending", False, False): HandOverCount(1, none),
            HandOver("nightly", 1, "skipped", False, False): HandOverCount(1, none),
        }
        other = {HandOver("other.job", 2, "running", True, False): HandOverCount(1, none)}
        hand_overs = history.summaries.hand_overs
        assert await hand_overs(NOON, limit=100) == HandOvers(NOON, everything | other)
        assert await hand_overs(NOON, limit=100, job="nightly") == HandOvers(NOON, everything)
        assert await hand_overs(NOON, limit=100, namespaces=("other",)) == HandOvers(NOON, other)
        assert await hand_overs(NOON + 2 * MINUTE, limit=100) == HandOvers(NOON + 2 * MINUTE, {})
        newest = {HandOver("nightly", 1, "pending", False, False): HandOverCount(1, none)}
        assert await hand_overs(NOON - 9 * MINUTE, limit=1) == HandOvers(NOON + MINUTE, newest)


async def test_streak_begins_after_the_last_success(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        lives = [life(n, "failed", at=NOON + n * MINUTE) for n in range(70)]
        lives[10] = life(10, "completed", at=NOON + 10 * MINUTE)
        lives[11] = life(11, "skipped", at=NOON + 11 * MINUTE)
        await record(
            history,
            *reversed(lives),
            life(80, "running", at=NOON + 80 * MINUTE),
            life(81, "failed", job="failed at last"),
            life(82, "completed", job="healed", at=NOON + MINUTE),
            life(83, "failed", job="healed"),
            life(84, "running", job="open"),
            # Executions with one scheduled time are in the order of their ids.
            *(life(n, "completed" if n == 92 else "failed", job="of shards") for n in range(90, 95)),
        )
        names = ["nightly", "failed at last", "healed", "open", "of shards", "absent"]
        streaks = await history.summaries.streaks(names)
        assert {name: (s.first.execution_id, s.last.execution_id, s.count) for name, s in streaks.items()} == {
            "nightly": ("0012", "0069", 58),
            "failed at last": ("0081", "0081", 1),
            "of shards": ("0093", "0094", 2),
        }
        assert list(streaks) == ["nightly", "failed at last", "of shards"]
        [newest] = (await history.summaries.newest_of(["failed at last"], limit=1))["failed at last"]
        assert streaks["failed at last"].last == newest
        assert await history.expire(NOON + 60 * MINUTE, after=30 * MINUTE)
        streaks = await history.summaries.streaks(names)
        assert {name: (s.first.execution_id, s.count) for name, s in streaks.items()} == {"nightly": ("0029", 41)}


def dead_letter(number: int, job: str, error: str | None, definition: int = 3) -> tuple[Message, datetime]:
    """Return a dead letter, and the time of its only attempt."""
    at, name = NOON + number * MINUTE, f"{number:04}"
    fact = DeadLettered(
        job=job,
        id=name,
        execution_id=name,
        scheduled_time=NOON,
        trigger="cron",
        attempts=(),
        last_error=None if error is None else Failure(type="E", message=error),
        first_attempt=at,
        last_attempt=at,
        definition=definition,
    )
    return fact, at


ERRORS: Final = ("no row 1", "no row 22\nin orders", "disk full", "no row 333", None, "NO ROW 4", "no row 5 \0")
"""The errors of dead letters 0 to 6, of the jobs a and b in turn."""


async def test_letters_are_grouped_by_job_and_pattern(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, [dead_letter(n, "ab"[n % 2], error) for n, error in enumerate(ERRORS)])
        found = await history.summaries.letter_groups(DeadLetterQuery(), limit=10)
        assert found.is_complete
        assert [(g.count, g.job_name, g.pattern, g.example) for g in found.groups] == [
            (2, "b", "E: no row <n>", "0003"),
            (1, "a", "E: no row <n> \ufffd", "0006"),
            (1, "b", "E: NO ROW <n>", "0005"),
            (1, "a", "", "0004"),
            (1, "a", "E: disk full", "0002"),
            (1, "a", "E: no row <n>", "0000"),
        ]
        largest = found.groups[0]
        assert (largest.first, largest.last) == (NOON + MINUTE, NOON + 3 * MINUTE)
        assert (largest.definition, largest.first_attempt) == (None, None)
        part = await history.summaries.letter_groups(DeadLetterQuery(), limit=5)
        assert (len(part.groups), part.is_complete) == (5, False)
        assert await history.summaries.letter_groups(DeadLetterQuery(limit=1, sort="oldest"), limit=10) == found


async def test_groups_have_the_filters_of_lists(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        letters = [dead_letter(n, job, "no row 1") for n, job in enumerate(("a.x", "a.x", "a.x", "b.x", "a"))]
        await record(history, [*letters, (Resolved(job="a.x", id="0001"), NOON)])

        async def groups(**query: Any) -> list[tuple[str, int, str]]:  # noqa: ANN401 - fields of a query
            found = await history.summaries.letter_groups(DeadLetterQuery(**query), limit=10)
            listed = (await history.dead_letters(DeadLetterQuery(**query))).rows
            assert sum(group.count for group in found.groups) == len(listed)
            return [(group.job_name, group.count, group.example) for group in found.groups]

        assert await groups() == [("a.x", 3, "0002"), ("a", 1, "0004"), ("b.x", 1, "0003")]
        assert await groups(unresolved=True) == [("a.x", 2, "0002"), ("a", 1, "0004"), ("b.x", 1, "0003")]
        assert await groups(job="a.x", until=NOON + 2 * MINUTE) == [("a.x", 2, "0001")]
        assert await groups(job="a.x", until=NOON + 2 * MINUTE, unresolved=True) == [("a.x", 1, "0000")]
        assert await groups(since=NOON + 4 * MINUTE) == [("a", 1, "0004")]
        assert await groups(namespaces=("b",)) == [("b.x", 1, "0003")]
        assert await groups(pattern="E: no row <n>", job="b.x") == [("b.x", 1, "0003")]
        assert await groups(pattern="E: no row 1") == []


async def test_groups_by_definition_have_one_each(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        definitions = (3, 3, 4, 0, 0)  # 0: the job was not registered
        await record(history, [dead_letter(n, "a", "x", definition) for n, definition in enumerate(definitions)])
        found = await history.summaries.letter_groups(DeadLetterQuery(), limit=10, by_definition=True)
        assert [(g.count, g.definition, g.first_attempt, g.example) for g in found.groups] == [
            (2, 3, None, "0001"),
            (1, None, NOON + 4 * MINUTE, "0004"),
            (1, None, NOON + 3 * MINUTE, "0003"),
            (1, 4, None, "0002"),
        ]


async def test_letters_of_a_group_come_in_pages(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, [dead_letter(n, "a", f"no row {n}" if n % 3 else "disk full") for n in range(12)])
        for sort, ids in (("newest", ["0009", "0006", "0003", "0000"]), ("oldest", ["0000", "0003", "0006", "0009"])):
            query = DeadLetterQuery(job="a", pattern="E: disk full", sort=cast("DeadLetterSort", sort), limit=3)
            assert [row.id async for row in every(history.dead_letters, query)] == ids


async def test_expired_executions_are_in_no_summary(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, life(1, "failed"), life(2, "completed"))
        while await history.expire(NOON + timedelta(days=2), after=timedelta(days=1)):
            pass
        summaries = history.summaries
        assert (await summaries.ends(NOON, limit=10, by_job=True)).counts == {}
        assert await summaries.failed_jobs(failures=10, limit=10) == []
        assert await summaries.newest_of(["nightly"], limit=10) == {"nightly": []}


async def test_others_use_up_no_limit(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        for status in ("failed", "running"):
            others = [
                life(n, status, job=f"b.{n}", at=NOON + n * MINUTE)
                for n in (range(10, 20) if status == "failed" else range(20, 30))
            ]
            await record(
                history, *others, life(1 if status == "failed" else 2, status, job="a.x", at=NOON + 5 * MINUTE)
            )
        summaries, own = history.summaries, ("a",)
        assert await summaries.failed_jobs(failures=1, limit=1, namespaces=own) == ["a.x"]
        assert [head.job_name for head in await summaries.oldest("running", limit=2, namespaces=own)] == ["a.x"]
        counts = await summaries.ends(NOON, limit=3, by_job=True, namespaces=own)
        assert (counts.since, counts.counts) == (NOON, {"failed": {End(NOON + 6 * MINUTE, "a.x", 1): 1}})
        assert await summaries.failed_jobs(failures=1, limit=1, namespaces=()) == []


@pytest.mark.parametrize("empty_database", ["redis"], indirect=True)
async def test_search_for_namespaces_is_bounded(empty_database: EmptyDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has no index of namespaces, so the executions of others are read and left out."""
    async with empty_database() as database, database.open() as history:
        for status, first, mine in (("failed", 10, NOON), ("running", 20, NOON + 40 * MINUTE)):
            others = [life(n, status, job=f"b.{n}", at=NOON + n * MINUTE) for n in range(first, first + 4)]
            await record(history, *others, life(first // 10, status, job="a.x", at=mine))
        for examined, found in ((4, []), (5, ["a.x"])):
            monkeypatch.setattr(redis_summaries, "MAX_EXAMINED", examined)
            jobs = await history.summaries.failed_jobs(failures=1, limit=1, namespaces=("a",))
            heads = await history.summaries.oldest("running", limit=1, namespaces=("a",))
            assert ([*jobs], [head.job_name for head in heads]) == (found, found)
