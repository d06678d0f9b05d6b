"""Schedules count against the executions that a namespace may begin in a day."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.schedule import parse
from tocsin.services.jobs.quotas import check_schedule_quotas, gained_instants, instants_per_day

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def job(name: str, schedule: str | None, **fields: object) -> JobDefinition:
    given = {"name": name, "function": "f", "queue": "payments.q", "schedule": schedule, **fields}
    return JobDefinition.model_validate(given)


@pytest.mark.parametrize(
    ("schedule", "number"),
    [
        ("@every 1ms", 86_400_000),
        ("@every 7h", 4),
        ("@every 36h", 1),
        ("* * * * *", 1_440),
        ("* * * * * *", 86_400),
        ("0-9 */30 8-17 * * MON-FRI", 200),
        ("* * * 29 2 *", 86_400),
        ("@daily", 1),
        ("every weekday at 9am and 5:30pm", 2),
        ("at 2027-03-02T09:00", 0),
        ("at 2027-03-01T09:00", 0),
        ("* * * * * until 2027-03-01T11:00", 0),
        ("* * * * * from 2027-03-02T09:00 until 2027-03-02T09:05", 1_440),
        (None, 0),
    ],
)
def test_schedule_has_instants_a_day(schedule: str | None, number: int) -> None:
    assert instants_per_day(job("payments.a", schedule), NOW) == number


def test_disabled_job_has_no_instants() -> None:
    assert instants_per_day(job("payments.a", "@every 1ms", enabled=False), NOW) == 0


def test_blackouts_leave_nothing_out() -> None:
    blackout = [{"from": "2027-03-01T00:00", "to": "2027-03-31T00:00"}]
    assert instants_per_day(job("payments.a", "* * * * *", blackout=blackout), NOW) == 1_440


FIELD = st.sampled_from(["*", "*/7", "0", "3-9", "1,2"])


@given(
    schedule=st.one_of(
        st.tuples(FIELD, FIELD, FIELD, st.sampled_from(["*", "2", "*/3"])).map(lambda parts: " ".join([*parts, "* *"])),
        st.integers(min_value=700, max_value=10**8).map(lambda milliseconds: f"@every {milliseconds}ms"),
    ),
    hours=st.integers(min_value=0, max_value=72),
)
def test_no_day_has_more_instants(schedule: str, hours: int) -> None:
    parsed, start = parse(schedule), NOW + timedelta(hours=hours)
    assert parsed.count(start, start + timedelta(days=1), anchor=NOW) <= parsed.most_per_day


def instants(*definitions: JobDefinition) -> dict[str, int]:
    return {each.name: instants_per_day(each, NOW) for each in definitions}


def refused(*wanted: JobDefinition, deleted: tuple[str, ...] = (), given: tuple[JobDefinition, ...] = ()) -> list[str]:
    by_name, named = {each.name: each for each in wanted}, instants(*given)
    before = {name: number for name, number in named.items() if name in by_name or name in deleted}
    gained = gained_instants(instants(*wanted), before)
    try:
        check_schedule_quotas(by_name, gained, {"payments": sum(named.values())}, {"payments": 1_440})
    except DefinitionError as error:
        return [f"{problem.code}: {problem.job}" for problem in error.problems]
    return []


EACH_MINUTE, DAILY = job("payments.minute", "* * * * *"), job("payments.daily", "@daily")


def test_one_schedule_beyond_the_quota_is_refused() -> None:
    assert refused(job("payments.a", "@every 1ms")) == ["schedule-above-quota: job `payments.a`"]
    assert refused(EACH_MINUTE) == []


def test_schedules_of_a_namespace_count_together() -> None:
    assert refused(DAILY, EACH_MINUTE) == ["schedule-above-quota: job `payments.minute`"]
    assert refused(DAILY, given=(EACH_MINUTE,)) == ["schedule-above-quota: job `payments.daily`"]
    assert refused(DAILY, given=(EACH_MINUTE,), deleted=("payments.minute",)) == []
    assert refused(job("payments.minute", "*/2 * * * *"), DAILY, given=(EACH_MINUTE,)) == []


def test_definition_that_adds_no_instants_is_accepted() -> None:
    above = (job("payments.a", "* * * * * *"), DAILY)
    assert refused(job("payments.a", "* * * * * *", timeout="5s"), given=above) == []
    assert refused(job("payments.a", "*/2 * * * * *"), given=above) == []
    assert refused(job("payments.b", None), given=above) == []
    assert refused(job("payments.a", "*/2 * * * * *"), job("payments.b", "@daily"), given=above) == []
    assert refused(job("payments.b", "@daily"), given=above) == ["schedule-above-quota: job `payments.b`"]


def test_only_namespaces_that_grow_are_counted() -> None:
    gained = gained_instants({"a.x": 5, "a.y": 1, "b.x": 3, "c.x": 2}, {"a.x": 2, "a.z": 3, "b.x": 3, "c.x": 3})
    assert gained == {"a": {"a.x": 3, "a.y": 1, "a.z": -3}}
    assert gained_instants({}, {"a.x": 1}) == {}


def test_jobs_that_run_once_fill_no_quota() -> None:
    once = [job(f"payments.{day}", f"at 2027-04-{day}T09:00") for day in range(10, 22)]
    assert refused(*once, given=(EACH_MINUTE,)) == []
    assert refused(EACH_MINUTE, given=tuple(once)) == []


def test_enabling_a_job_adds_its_instants() -> None:
    disabled = job("payments.a", "@every 1ms", enabled=False)
    assert refused(disabled) == []
    assert refused(job("payments.a", "@every 1ms"), given=(disabled,)) == ["schedule-above-quota: job `payments.a`"]
