"""`/v1/schedule/density`: buckets, herds and suggestions."""

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.conftest import World
from tests.properties import examples
from tocsin.domain import ledger
from tocsin.domain.access import Role
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Recorded
from tocsin.domain.schedule import parse
from tocsin.services.calculations import Calculations, Effort
from tocsin.services.jobs import Job
from tocsin.services.schedule_density import ScheduleGroup, ScheduleGroups, density

NOW = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
DAY = timedelta(days=1)
ENOUGH = Effort(float("inf"))


def job(name: str, schedule: str | None, **fields: object) -> Job:
    """Return a job that was registered an hour ago."""
    definition = JobDefinition.model_validate({"name": name, "schedule": schedule, "function": "f", **fields})
    fact = Defined(job=name, definition=definition)
    registered = Job.of(ledger.evolve(ledger.initial, Recorded(fact, "", 1, NOW - timedelta(hours=1))))
    assert registered is not None
    return registered


def jobs(schedules: Sequence[str], **fields: object) -> list[Job]:
    return [job(f"job-{number:03}", schedule, **fields) for number, schedule in enumerate(schedules)]


def groups(known: Sequence[Job]) -> Sequence[ScheduleGroup]:
    found, is_complete = ScheduleGroups().seen(known, lambda _: True, ENOUGH)
    assert is_complete
    return found


SCHEDULES = st.sampled_from(
    [
        "0 3 * * *",
        "*/7 * * * *",
        "@every 61s",
        "* * * * * *",
        "@hourly",
        "0 0 29 2 *",
        "at 2026-11-20T18:00",
        "*/9 * * * * 5",
    ]
)


@given(st.lists(SCHEDULES, max_size=6), st.integers(1, 50), st.integers(1, 48))
@settings(deadline=None, max_examples=examples(30))
def test_buckets_count_each_instant_once(schedules: list[str], buckets: int, hours: int) -> None:
    known, window = jobs(schedules), timedelta(hours=hours)
    found = density(groups(known), NOW, window, buckets, 2, ENOUGH)
    assert len(found.buckets) == buckets
    assert sum(bucket.count for bucket in found.buckets) == sum(each.count(NOW, NOW + window, 10**6) for each in known)
    assert not found.truncated


def test_herds_join_schedules_that_meet() -> None:
    known = [*jobs(["0 3 * * *"] * 3), job("other", "every day at 3am"), job("alone", "1 3 * * *")]
    [herd] = density(groups(known), NOW, 2 * DAY, 10, 4, ENOUGH).herds
    assert (herd.at, herd.count, herd.times) == (datetime(2026, 11, 21, 3, tzinfo=UTC), 4, 2)
    assert herd.jobs == ("job-000", "job-001", "job-002", "other")


def test_large_herd_names_ten_jobs() -> None:
    [herd] = density(groups(jobs(["@hourly"] * 30)), NOW, DAY, 1, 10, ENOUGH).herds
    assert (herd.count, len(herd.jobs), herd.times) == (30, 10, 24)


@pytest.mark.parametrize(
    "off", [{"enabled": False}, {"schedule": None}, {"schedule": "* * * * * *"}, {"schedule": "at 2026-11-01T00:00"}]
)
def test_jobs_apart_are_in_no_herd(off: dict[str, Any]) -> None:
    known = [job(f"job-{n}", off.get("schedule", "@hourly"), enabled=off.get("enabled", True)) for n in range(12)]
    assert density(groups(known), NOW, timedelta(hours=1), 4, 2, ENOUGH).herds == ()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Europe/Berlin"])
def test_suggestions_spread_a_herd_at_equal_frequency(zone: str) -> None:
    known = jobs(["0 3 * * 1-5"] * 20, timezone=zone)
    suggestions = density(groups(known), NOW, 7 * DAY, 7, 10, ENOUGH).suggestions
    assert len(suggestions) == 19
    suggested = [parse(suggestion.suggested, zone) for suggestion in suggestions]
    assert len({schedule.next_after(NOW, anchor=NOW) for schedule in suggested}) == len(suggestions)
    for suggestion, schedule in zip(suggestions, suggested, strict=True):
        old = parse(suggestion.schedule, zone)
        assert schedule.count(NOW, NOW + 28 * DAY, anchor=NOW) == old.count(NOW, NOW + 28 * DAY, anchor=NOW)


@pytest.mark.parametrize("schedule", ["*/5 * * * *", "0,30 * * * *", "@every 1h", "@daily until 2027-01-01T00:00"])
def test_no_suggestion_without_one_minute(schedule: str) -> None:
    assert density(groups(jobs([schedule] * 20)), NOW, DAY, 1, 10, ENOUGH).suggestions == ()


def test_calculation_that_takes_too_long_is_cut_short() -> None:
    found = density(groups(jobs(["* * * * *"] * 3)), NOW, DAY, 4, 2, Effort(0))
    assert found.truncated
    assert len(found.buckets) == 4


async def test_density_shows_visible_jobs_only(world: World) -> None:
    for number in range(3):
        await world.given(name=f"open-{number}", schedule="@hourly")
        await world.given(name=f"secret-{number}", schedule="@hourly", viewers=("user:ada",))
    token = await world.token("eve", Role.CATALOG)
    answer = await world.ask("GET", "/v1/schedule/density?threshold=2&hours=1", Authorization=f"Bearer {token}")
    assert answer.status_code == 200
    assert "secret" not in answer.text
    [herd] = answer.json()["herds"]
    assert herd["count"] == sum(bucket["count"] for bucket in answer.json()["buckets"]) == 3


async def test_first_answer_has_all_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One calculation is too short to look at all jobs after a start."""
    for number in range(4):
        await world.given(name=f"job-{number}", schedule="0 3 * * *")
    spent = iter((False, True, False, True))
    monkeypatch.setattr(Effort, "is_spent", lambda _: next(spent, False))
    shown = (await world.ask("GET", "/v1/schedule/density")).json()
    assert next(spent, None) is None
    assert (sum(bucket["count"] for bucket in shown["buckets"]), shown["truncated"]) == (4, False)


async def test_first_look_follows_new_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older list would undo what the watch of jobs has followed."""
    await world.given(name="early", schedule="0 3 * * *")
    run, spent = Calculations.run, iter((True,))

    async def run_slowly(self: Calculations, compute: Callable[[Effort], Any], /, *, party: str = "") -> object:
        result = await run(self, compute, party=party)
        if result is False:
            await world.given(name="late", schedule="0 3 * * *")
        return result

    monkeypatch.setattr(Calculations, "run", run_slowly)
    monkeypatch.setattr(Effort, "is_spent", lambda _: next(spent, False))
    shown = (await world.ask("GET", "/v1/schedule/density")).json()
    assert (sum(bucket["count"] for bucket in shown["buckets"]), shown["truncated"]) == (2, False)


async def test_first_look_ends_before_the_timeout(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given(name="early", schedule="0 3 * * *")
    run, looks = Calculations.run, itertools.count(1)

    async def run_slowly(self: Calculations, compute: Callable[[Effort], Any], /, *, party: str = "") -> object:
        result = await run(self, compute, party=party)
        if result is False:
            world.clock.advance(1)
            assert next(looks) < world.settings.server.request_timeout
        return result

    monkeypatch.setattr(Calculations, "run", run_slowly)
    monkeypatch.setattr(Effort, "is_spent", lambda _: True)
    answer = await world.ask("GET", "/v1/schedule/density")
    assert (answer.status_code, answer.json()["truncated"]) == (200, True)
    assert next(looks) > 2  # it tried again


@pytest.mark.parametrize("query", ["hours=0", "hours=169", "buckets=0", "buckets=337", "threshold=1"])
async def test_window_is_limited(world: World, query: str) -> None:
    assert (await world.ask("GET", f"/v1/schedule/density?{query}")).status_code == 422
