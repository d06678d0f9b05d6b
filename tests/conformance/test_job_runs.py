"""The counters of jobs in every history: real servers, each test in an empty database."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.test_history import Databases, EmptyDatabase
from tests.conformance.test_history_summaries import MINUTE, life, record
from tests.domain.given import NOON
from tests.properties import examples
from tocsin.domain.execution_record import MAX_TEXT, LastRun
from tocsin.ports import History
from tocsin.ports.summaries import ENDED, JobRuns
from tocsin.subjects import Stream

SECOND: Final = timedelta(seconds=1)
STATUSES: Final = (*ENDED, "running", "pending")


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "redis"])
def empty_database(request: pytest.FixtureRequest) -> Iterator[EmptyDatabase]:
    """Makes empty databases."""
    databases = Databases(request.param)
    yield databases
    databases.close()


async def runs_of(history: History, job: str = "nightly") -> JobRuns:
    """Return the counters of a job in a complete history."""
    runs = await history.summaries.runs([job])
    assert runs is not None
    return runs[job]


async def test_job_without_executions_has_zeros(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        assert await history.summaries.runs([]) == {}
        runs = await runs_of(history)
        assert runs == JobRuns()
        assert (runs.run_count, runs.error_count, runs.skip_count, runs.running) == (0, 0, 0, 0)


async def test_runs_are_counted_by_their_end(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(
            history,
            life(1, "completed"),
            life(2, "failed"),
            life(3, "failed"),
            life(4, "skipped"),
            life(5, "cancelled"),
            life(6, "running"),
            life(7, "running"),
            life(8, "pending"),
            life(9, "completed", job="other"),
        )
        runs = await runs_of(history)
        assert runs.ends == {"completed": 1, "failed": 2, "skipped": 1, "cancelled": 1}
        assert (runs.run_count, runs.error_count, runs.skip_count, runs.running) == (5, 2, 1, 2)
        both = await history.summaries.runs(["other", "nightly", "unknown"])
        assert both is not None
        assert [*both] == ["other", "nightly", "unknown"]
        assert (both["other"].run_count, both["nightly"], both["unknown"]) == (1, runs, JobRuns())


async def test_last_run_ended_after_all_others(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, life(1, "failed", took=3 * MINUTE), life(2, "completed", took=MINUTE))
        last = (await runs_of(history)).last
        assert last == LastRun("0001", "failed", NOON + 3 * MINUTE, 180_000, f"ValueError: {'x' * 488}", None, 1)
        assert len(last.error or "") == MAX_TEXT
        await record(history, life(3, "skipped", took=4 * MINUTE, definition=7))
        assert (await runs_of(history)).last == LastRun(
            "0003", "skipped", NOON + 4 * MINUTE, None, None, "overlap_skip", 7
        )
        await record(history, life(4, "running", at=NOON + 5 * MINUTE), life(5, "completed", definition=0))
        assert (await runs_of(history)).last == LastRun(
            "0003", "skipped", NOON + 4 * MINUTE, None, None, "overlap_skip", 7
        )


async def test_counters_outlive_rows_until_the_job_is_gone(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, life(1, "completed", at=NOON), life(2, "failed", at=NOON + MINUTE))
        before = await runs_of(history)
        assert await history.expire(NOON + timedelta(days=2), after=timedelta(days=1)) == 2
        assert await runs_of(history) == before
        assert await history.expire(NOON + timedelta(days=2), after=timedelta(days=1)) == 0  # it is not registered
        assert await runs_of(history) == JobRuns()


async def test_counters_are_unknown_during_a_rebuild(empty_database: EmptyDatabase) -> None:
    async with empty_database() as database, database.open() as history:
        await record(history, life(1, "completed"), life(2, "failed"))
        before, place = await runs_of(history), await history.offset(Stream.LOG)
        await history.forget()
        assert await history.summaries.runs(["nightly"]) is None
        await record(history, life(1, "completed"))
        assert await history.summaries.runs(["nightly"]) is None
        await record(history, life(2, "failed"))
        assert await history.offset(Stream.LOG) == place
        assert await runs_of(history) == before


LIVES = st.lists(
    st.lists(st.tuples(st.sampled_from(STATUSES), st.sampled_from(["nightly", "other"])), max_size=5), max_size=4
)


@given(LIVES)
@settings(max_examples=examples(15), deadline=None)
async def test_counters_equal_the_recorded_rows(
    empty_database: EmptyDatabase, batches: list[list[tuple[str, str]]]
) -> None:
    number, expected, running = 0, Counter[tuple[str, str]](), Counter[str]()
    last: dict[str, str] = {}
    async with empty_database() as database, database.open() as history:
        for batch in batches:
            lives = []
            for status, job in batch:
                number += 1
                lives.append(life(number, status, job=job, at=NOON + number * SECOND))
                if status in ENDED:
                    expected[job, status] += 1
                    last[job] = f"{number:04}"
                running[job] += status == "running"
            await record(history, *lives)
        runs = await history.summaries.runs(["nightly", "other"])
        assert runs is not None
        for job, of_job in runs.items():
            assert of_job.ends == {status: expected[job, status] for status in ENDED if expected[job, status]}
            assert of_job.running == running[job]
            assert (of_job.last and of_job.last.execution_id) == last.get(job)


async def test_executions_of_many_jobs_are_counted(empty_database: EmptyDatabase) -> None:
    names = [f"job-{n}" for n in range(1_201)]  # more than a request to the database holds
    async with empty_database() as database, database.open() as history:
        await record(history, *(life(n, "running", job=names[n]) for n in (0, 600, 1_200)))
        await record(history, life(2_000, "failed", job=names[1_200]))
        runs = await history.summaries.runs(names)
        assert runs is not None
        assert [name for name in names if runs[name].running] == ["job-0", "job-600", "job-1200"]
        assert runs["job-1200"].error_count == 1
