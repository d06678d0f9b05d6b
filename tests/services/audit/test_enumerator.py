"""The instants that the audit finds by brute force, beside those of the calendar, of croniter and of cronsim."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from croniter import CroniterError, croniter
from cronsim import CronSim, CronSimError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.domain.schedule import strategies as random
from tests.properties import examples
from tests.services.explain.past import Past
from tests.simulation.mutation import Edit, Mutation, made
from tocsin.domain.definition import JobDefinition
from tocsin.domain.schedule import ScheduleError, parse
from tocsin.domain.schedule.day_rules import OpenDays
from tocsin.domain.schedule.instants import CalendarRule
from tocsin.domain.schedule.moved_pattern import MovedPattern
from tocsin.domain.schedule.rules import IntervalRule
from tocsin.services.audit import audit
from tocsin.services.audit.enumerator import instants

HOUR = timedelta(hours=1)
# Clock changes in UTC: of an hour, of half an hour, at midnight, and of a whole day.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 4, 5, 3, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
]
moments = st.one_of(
    st.builds(lambda change, earlier: (change[0], change[1] + earlier), st.sampled_from(CHANGES), st.timedeltas(-30 * HOUR, HOUR)),
    st.tuples(random.zones, random.moments),
)  # fmt: skip
nightly = st.builds(
    "{} {} {} * *".format, random.minutes, st.sampled_from(["*", "1-3", "2", "0,23", "*/2"]), random.month_days
)
texts = st.one_of(
    random.five_fields,
    nightly,
    st.sampled_from(["@hourly", "@Daily", "@every 7m", "@every 1h30m", "@every 0.5h250ms", "every 90 minutes", "every day at 2:30"]),
    st.sampled_from(["every 15 minutes between 1am and 3am", "every day at 9am, and every hour on weekends", "weekdays at 1am UTC"]),
)  # fmt: skip
policies = st.sampled_from([None, {"gap": "shift"}, {"fold": "both"}, {"gap": "shift", "fold": "both"}])


def calendar(days: list[int], weekdays: list[str], at: datetime) -> dict[str, object]:
    dates = sorted(at.date() + timedelta(days=day) for day in days)
    return {"name": "a", "days": [f"{dates[0]}/{dates[-1]}", *map(str, dates[1:-1])], "weekdays": weekdays}


@st.composite
def definitions(draw: st.DrawFn, zone: str, at: datetime) -> JobDefinition:
    text, local = draw(texts).replace("UTC", zone), at.replace(tzinfo=None, microsecond=0)
    if draw(st.integers(0, 9)) == 0:
        text = f"at {local + timedelta(minutes=draw(st.integers(-600, 900)))}"
    elif draw(st.integers(0, 5)) == 0:
        text += f" from {local + 3 * HOUR} until {local + 9 * HOUR}"
    fields: dict[str, object] = {"dst": draw(policies)}
    closed = st.builds(calendar, st.lists(st.integers(-4, 4), min_size=1, max_size=4), st.sampled_from([["sunday"], []]), st.just(at))  # fmt: skip
    for name in draw(st.sampled_from([(), (), ("exclude",), ("only",), ("exclude", "only")])):
        fields[name] = [draw(closed)]
    if draw(st.integers(0, 3)) == 0:
        fields["blackout"] = [{"from": str(local + 2 * HOUR), "to": str(local + 7 * HOUR)}]
    if not text.startswith("@every") and fields.keys() & {"exclude", "only"}:
        fields["shift"] = draw(st.sampled_from(["skip", "next_business_day"]))
    try:
        parse(text, zone, days=None)
    except ScheduleError:
        assume(False)  # an expression that never fires, or a moment that does not exist
    return JobDefinition.model_validate({"name": "a", "function": "f", "schedule": text, "timezone": zone, **fields})


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), moments, st.timedeltas(HOUR, 60 * HOUR))
def test_enumerator_and_calendar_agree(data: st.DataObject, place: tuple[str, datetime], length: timedelta) -> None:
    zone, after = place
    rule = data.draw(definitions(zone, after))
    schedule = parse(rule.schedule or "", zone, dst=rule.dst, days=rule.day_rules)
    occurrences = schedule.occurrences(after, after + length, anchor=after - HOUR)
    expected = [((each.at, each.skipped_local is not None), each.excluded) for each in occurrences]
    assert list(instants(rule, after, after + length, after - HOUR)) == expected


@settings(max_examples=examples(150), deadline=None)
@given(random.six_fields, moments, st.timedeltas(timedelta(0), timedelta(minutes=20)))
def test_enumerator_and_calendar_agree_on_seconds(text: str, place: tuple[str, datetime], length: timedelta) -> None:
    zone, after = place
    try:
        occurrences = parse(text, zone).occurrences(after, after + length, anchor=after)
    except ScheduleError:
        assume(False)  # an expression that never fires
    rule = JobDefinition.model_validate({"name": "a", "function": "f", "schedule": text, "timezone": zone})
    assert [at for (at, _), _ in instants(rule, after, after + length, after)] == [each.at for each in occurrences]


@settings(max_examples=examples(200), deadline=None)
@given(random.expressions, random.moments)
@example("0 0 29 2 *", datetime(2026, 1, 1, tzinfo=UTC))
def test_enumerator_agrees_where_croniter_and_cronsim_do(text: str, after: datetime) -> None:
    after, has_seconds = after.replace(microsecond=0), len(text.split()) == 6
    with suppress(CroniterError, CronSimError, StopIteration):
        walk = croniter(text, after.replace(tzinfo=None), datetime, second_at_beginning=has_seconds)
        theirs = [walk.get_next().replace(tzinfo=UTC) for _ in range(3)]
        is_settled = theirs == list(islice(CronSim(text, after), 3)) and theirs[-1] - after < timedelta(days=4_000)
        rule = JobDefinition.model_validate({"name": "a", "function": "f", "schedule": text})
        if is_settled and "/" not in text:
            assert [at for (at, _), _ in instants(rule, after, theirs[-1], after)] == theirs


@pytest.mark.parametrize(
    ("text", "zone", "dst", "day", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", None, "2026-03-29", ["01:30 skipped"]),
        ("30 2 * * *", "Europe/Berlin", {"gap": "shift"}, "2026-03-29", ["01:30"]),
        ("30 2 * * *", "Europe/Berlin", None, "2026-10-25", ["00:30"]),
        ("30 2 * * *", "Europe/Berlin", {"fold": "both"}, "2026-10-25", ["00:30"]),
        ("30 2-2 * * *", "Europe/Berlin", {"fold": "both"}, "2026-10-25", ["00:30", "01:30"]),
        ("*/30 1 * * *", "America/New_York", None, "2026-11-01", ["05:00", "05:30"]),
        ("15 2 * * *", "Australia/Lord_Howe", None, "2026-10-03", ["15:45 skipped"]),
        ("45 1 * * *", "Australia/Lord_Howe", None, "2026-04-04", ["14:45"]),
        ("0 12 * * *", "Pacific/Apia", None, "2011-12-30", ["22:00", "22:00 skipped"]),
        ("0 12 30 12 *", "Pacific/Apia", None, "2011-12-30", ["22:00 skipped"]),
    ],
)
def test_gaps_and_folds_have_one_outcome(
    text: str, zone: str, dst: dict[str, str] | None, day: str, expected: list[str]
) -> None:
    fields = {"name": "a", "function": "f", "schedule": text, "timezone": zone, "dst": dst}
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(seconds=1)
    found = instants(JobDefinition.model_validate(fields), start, start + timedelta(days=1), start)
    assert [f"{at:%H:%M}{' skipped' * is_skipped}" for (at, is_skipped), _ in found] == expected


def lived(schedule: str, day: str, **fields: object) -> list[str]:
    """Return the violations of the decisions of four days, in which the ticker decided every half hour."""
    past = Past(schedule, "Europe/Berlin", **fields).defined(day)
    for _ in range(199):
        past.ticked(past.now + HOUR / 2)
    return [str(violation) for violation in audit(past.facts, patience=1_000 * HOUR).violations]


CLOSED = {"exclude": [{"name": "closed", "days": ["2026-10-25"]}]}
MUTATIONS = [
    ("30 2 * * *", "2026-10-24", {}, Mutation("fire what a fold repeats twice", (
        Edit(CalendarRule._next, "if self.deviates:", "if True:"),
        Edit(CalendarRule._from, "span.wall if self.fires_twice else span.fresh", "span.wall"),
    ))),
    ("30 2 * * *", "2026-03-28", {}, Mutation("shift what a gap skips", (
        Edit(CalendarRule._skipped, "yield Occurrence(instant(wall - span.before), wall_time(wall))", "yield Occurrence(instant(wall - span.before))"),
    ))),
    ("30 2 * * *", "2026-03-28", {}, Mutation("forget what a gap skips", (
        Edit(CalendarRule._skipped, 'self.dst.gap == "skip"', "False"),
    ))),
    ("0 9 * * *", "2026-10-24", CLOSED, Mutation("fire on a closed day", (
        Edit(OpenDays._steady_until, "end = self._excluded.steady_until(day)", "return 2**31"),
    ))),
    ("0 9 25,27 * *", "2026-10-24", {**CLOSED, "shift": "next_business_day"}, Mutation("move nothing", (
        Edit(MovedPattern.next, "if at is not None and", "if False and"),
    ))),
    ("@every 7h", "2026-10-24", {}, Mutation("leave out every other interval", (
        Edit(IntervalRule.next_after, "+ 1)", "+ 2)"),
    ))),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "day", "fields", "mutation"), MUTATIONS, ids=[case[3].name for case in MUTATIONS])
def test_audit_catches_a_bug_of_the_calendar(
    schedule: str, day: str, fields: dict[str, object], mutation: Mutation
) -> None:
    assert lived(schedule, day, **fields) == []
    with made(mutation):
        assert any("I2" in violation for violation in lived(schedule, day, **fields))
