"""Dependencies across jobs: what a definition may say, the window, and the last run in it."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import NOON, plan
from tocsin import subjects
from tocsin.domain import formats
from tocsin.domain.definition import MAX_DEPENDENCIES, STORED, DefinitionError, JobDefinition, JobDependency
from tocsin.domain.dependency import JobRuns, Run, Upstream, Window, learned, order, run_of, window
from tocsin.domain.events import (
    Admitted,
    Cancelled,
    Completed,
    Failed,
    Message,
    Recorded,
    Skipped,
)
from tocsin.stages.dependency_keeper.past_runs import last_of

HOUR = timedelta(hours=1)


def job(**fields: Any) -> JobDefinition:  # noqa: ANN401 - fields of a definition
    return JobDefinition.model_validate({"name": "report", "function": "f", "schedule": "0 2 * * *", **fields})


def test_a_name_alone_is_a_dependency() -> None:
    short, long = job(depends_on=["load"]), job(depends_on=[{"job": "load", "on": "completed"}])
    assert short == long
    assert short.depends_on == (JobDependency(job="load"),)
    assert JobDefinition.model_validate_json(short.model_dump_json(exclude_defaults=True), context=STORED) == short


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"depends_on": ["report"]}, "dependency-cycle", "cannot depend on itself"),
        (
            {"depends_on": ["load", {"job": "load", "within": 60}]},
            "duplicate-dependency",
            "`load` is named more than once",
        ),
        ({"depends_on": ["load"], "schedule": None}, "required", "{job: load, within: 6h}"),
        ({"depends_on": ["load"], "schedule": "at 2099-01-01T00:00"}, "required", "the window has no beginning"),
        ({"depends_on": [f"j{n}" for n in range(MAX_DEPENDENCIES + 1)]}, "too-large", "101 jobs, more than 100"),
        ({"depends_on": [{"job": "load", "on": "started"}]}, None, "completed"),
        ({"depends_on": [{"job": "Load"}]}, None, "lower-case"),
        ({"depends_on": [7]}, None, "depends_on"),
        (
            {"depends_on": [{"job": "load", "within": "32d"}]},
            "too-large",
            '`depends_on[0].within` is "32d": a window has at most 31 days',
        ),
        ({"depends_on": "load"}, "wrong-type", '`depends_on` is "load": must be a list of jobs, such as [load]'),
        ({"depends_on": {"job": "load"}}, "wrong-type", "`depends_on` is a mapping: must be a list of jobs"),
        ({"depends_on": ["load"], "dependency_timeout": 0}, None, "dependency_timeout"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], code: str | None, words: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        formats.read({"name": "report", "function": "f", "schedule": "0 2 * * *", **fields})
    [problem] = caught.value.problems
    assert words in str(problem)
    assert "depend" in str(problem)
    assert code in {None, problem.code}


def test_job_without_a_schedule_may_name_a_window() -> None:
    assert job(schedule=None, depends_on=[{"job": "load", "within": "6h"}]).depends_on[0].within == 6 * 3_600


@pytest.mark.parametrize(
    ("fields", "at", "since"),
    [
        ({"depends_on": ["load"]}, datetime(2026, 11, 20, 2, tzinfo=UTC), datetime(2026, 11, 19, 2, tzinfo=UTC)),
        # A triggered run: the window begins at the instant before it.
        ({"depends_on": ["load"]}, datetime(2026, 11, 20, 7, tzinfo=UTC), datetime(2026, 11, 20, 2, tzinfo=UTC)),
        # The night on which the clocks go back has 25 hours.
        (
            {"depends_on": ["load"], "timezone": "Europe/Prague", "schedule": "0 12 * * *"},
            datetime(2026, 10, 25, 11, tzinfo=UTC),
            datetime(2026, 10, 24, 10, tzinfo=UTC),
        ),
        # 02:30 is not on the clock of that night, and the job fires at 03:30.
        (
            {"depends_on": ["load"], "timezone": "Europe/Prague", "schedule": "30 2 * * *", "dst": {"gap": "shift"}},
            datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
            datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        ),
        # The job does not fire that night, and the next window is longer.
        (
            {"depends_on": ["load"], "timezone": "Europe/Prague", "schedule": "30 2 * * *", "dst": {"gap": "skip"}},
            datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
            datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
        ),
        # 02:30 is twice on the clock: each has its own window, or the second has none.
        (
            {"depends_on": ["load"], "timezone": "Europe/Prague", "schedule": "30 2 * * *", "dst": {"fold": "both"}},
            datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
            datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        ),
        (
            {"depends_on": ["load"], "timezone": "Europe/Prague", "schedule": "30 2 * * *", "dst": {"fold": "once"}},
            datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
            datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        ),
        ({"depends_on": ["load"], "schedule": "@every 90m"}, NOON, NOON - timedelta(minutes=90)),
        ({"depends_on": [{"job": "load", "within": "6h"}]}, NOON, NOON - 6 * HOUR),
        (
            {"depends_on": ["load"], "schedule": "0 0 29 2 *"},
            datetime(2028, 2, 29, tzinfo=UTC),
            datetime(2028, 1, 29, tzinfo=UTC),
        ),
    ],
)
def test_window_begins_at_the_instant_before(fields: dict[str, Any], at: datetime, since: datetime) -> None:
    definition = job(**fields)
    assert window(definition.depends_on[0], definition, at) == Window(since, at)


def opened(execution_id: str, hour: int, sequence: int) -> Recorded[Message]:
    fact = Admitted(
        job="load", execution_id=execution_id, scheduled_time=NOON + hour * HOUR, trigger="cron", plan=plan()
    )
    return Recorded(fact, subjects.subject_of(fact), sequence, NOON)


def ended(kind: type, execution_id: str, hour: int, sequence: int) -> Recorded[Message]:
    fields: dict[str, Any] = {"reason": "overlap_skip", "definition": 1} if kind is Skipped else {}
    fact = kind(job="load", execution_id=execution_id, scheduled_time=NOON + hour * HOUR, trigger="cron", **fields)
    return Recorded(fact, subjects.subject_of(fact), sequence, NOON)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from([None, Completed, Failed, Cancelled, Skipped])), max_size=8),
    st.integers(0, 8),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_last_run_is_that_of_a_plain_search(
    runs: list[tuple[int, type | None]], until: int, length: int, chance: Random
) -> None:
    events, expected = [], None
    for number, (hour, kind) in enumerate(runs, 1):
        events.append(opened(f"r{number}", hour, number))
        if kind is not None:
            events.append(ended(kind, f"r{number}", hour, 100 + number))
        is_better = expected is None or hour >= expected[0]
        if until - length < hour <= until and kind is not Skipped and is_better:
            expected = hour, f"r{number}"
    known, read = JobRuns(since=NOON), dict[str, Run]()
    for event in [*events, *chance.sample(events, len(events) // 2)]:  # some come again, in any order
        known = known.learn(event)
        if (run := run_of(event)) and (changed := learned(read.get(run.execution_id), run)):
            read[run.execution_id] = changed
    within = Window(NOON + (until - length) * HOUR, NOON + until * HOUR)
    last = known.last(within)
    assert last_of(sorted((run for run in read.values() if run.ended != "skipped"), key=order), within) == last
    assert (None if last is None else last.execution_id) == (None if expected is None else expected[1])


def test_end_without_its_beginning_counts() -> None:
    runs = JobRuns(since=NOON).learn(ended(Completed, "r", 1, 9))
    last = runs.last(Window(NOON, NOON + HOUR))
    assert last is not None
    assert last.ended == "completed"


@pytest.mark.parametrize(
    ("on", "kind", "state"),
    [
        ("completed", Completed, "met"),
        ("completed", Failed, "failed"),
        ("completed", Cancelled, "failed"),
        ("completed", None, "waits"),
        ("finished", Completed, "met"),
        ("finished", Failed, "met"),
        ("finished", Cancelled, "met"),
        ("finished", None, "waits"),
    ],
)
def test_end_that_a_dependency_wants(on: str, kind: type | None, state: str) -> None:
    runs = JobRuns(since=NOON).learn(opened("r", 0, 1))
    if kind is not None:
        runs = runs.learn(ended(kind, "r", 0, 2))
    wanted = JobDependency.model_validate({"job": "load", "on": on})
    assert Upstream(wanted, Window(NOON - HOUR, NOON), runs).state == state
    assert Upstream(wanted, Window(NOON, NOON + HOUR), runs).state == "missing"
