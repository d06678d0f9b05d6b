"""Properties of every schedule: time moves forward, nothing is between neighbours, and all queries agree."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain.schedule import DstPolicy, Schedule, ScheduleError, parse, timezones
from tocsin.domain.schedule.instants import seconds

from . import strategies as random
from .brute_force import found

policies = st.builds(DstPolicy, st.sampled_from(["skip", "shift"]), st.sampled_from(["once", "both"]))
intervals = st.integers(1, 10**9).map(lambda milliseconds: f"@every {milliseconds}ms")
phrases = st.sampled_from(["twice daily at 8am and 8:30pm", "every 15 minutes between 1am and 3am", "every 90 minutes"])
texts = st.one_of(random.expressions, intervals, phrases)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    try:
        return parse(draw(texts), draw(random.zones), dst=draw(policies))
    except ScheduleError:
        assume(False)  # an expression that never fires
        raise


def instants(schedule: Schedule, after: datetime, n: int) -> list[datetime]:
    named = list[datetime]()
    for _ in range(n):
        at = schedule.next_after(named[-1] if named else after, anchor=after)
        if at is None:
            break
        named.append(at)
    return named


@given(schedules(), random.moments)
@settings(max_examples=examples(200), deadline=None)
def test_previous_of_next_returns_to_the_start(schedule: Schedule, after: datetime) -> None:
    named = instants(schedule, after, 6)
    assert all(later > earlier for earlier, later in pairwise([after, *named]))
    for earlier, later in pairwise(named):
        tick = timedelta(microseconds=1)
        assert schedule.latest_until(later - tick, after=after, anchor=after) == earlier
        assert schedule.latest_until(later, after=after, anchor=after) == later
        assert schedule.next_after(later - tick, anchor=after) == later
    if named:
        assert schedule.latest_until(named[0] - timedelta(microseconds=1), after=after, anchor=after) is None


@given(random.five_fields, random.zones, random.moments)
@settings(max_examples=examples(60), deadline=None)
def test_no_minute_between_two_neighbours_matches(expression: str, timezone: str, after: datetime) -> None:
    try:
        schedule = parse(expression, timezone)
    except ScheduleError:
        assume(False)  # an expression that never fires
    after = after.replace(second=0, microsecond=0)
    for earlier, later in pairwise([after, *instants(schedule, after, 3)]):
        assert found(expression, timezone, max(earlier, later - timedelta(hours=8)), later) == [later]


@given(schedules(), random.moments, random.spans)
@settings(max_examples=examples(150), deadline=None)
def test_enumerating_counting_and_stepping_tell_the_same(
    schedule: Schedule, after: datetime, length: timedelta
) -> None:
    assume(schedule.interval is None or schedule.interval > timedelta(minutes=1))
    length = min(length, timedelta(hours=2)) if len(schedule.expressions[0].split()) == 6 else length
    until = after + length
    occurrences = list(schedule.occurrences(after, until, anchor=after))
    fires = [occurrence.at for occurrence in occurrences if occurrence.skipped_local is None]
    assert fires == sorted(set(fires))
    assert [occurrence.at for occurrence in occurrences] == sorted(occurrence.at for occurrence in occurrences)
    assert all(after < occurrence.at <= until for occurrence in occurrences)
    assert schedule.count(after, until, anchor=after) == len(fires)
    assert schedule.latest_until(until, after=after, anchor=after) == (fires[-1] if fires else None)
    assert [at for at in instants(schedule, after, len(fires) + 1) if at <= until] == fires


@given(schedules(), random.moments, random.spans, st.floats(0, 1))
@settings(max_examples=examples(100), deadline=None)
def test_adjoining_windows_tile(schedule: Schedule, after: datetime, length: timedelta, share: float) -> None:
    assume(schedule.interval is None or schedule.interval > timedelta(minutes=1))
    length = min(length, timedelta(hours=2)) if len(schedule.expressions[0].split()) == 6 else length
    until, border = after + length, after + length * share
    windows = [(after, border), (border, until)]
    parts = [occurrence for window in windows for occurrence in schedule.occurrences(*window, anchor=after)]
    assert parts == list(schedule.occurrences(after, until, anchor=after))
    assert sum(schedule.count(*window, anchor=after) for window in windows) == schedule.count(
        after, until, anchor=after
    )


@given(random.six_fields, random.moments, st.timedeltas(timedelta(0), timedelta(days=4000)))
@settings(max_examples=examples(100), deadline=None)
def test_counted_days_equal_their_enumerated_times(expression: str, after: datetime, length: timedelta) -> None:
    try:
        schedule = parse(expression)
    except ScheduleError:
        assume(False)  # an expression that never fires
    middle = after + length / 2
    whole = schedule.count(after, after + length, anchor=after)
    assert whole == schedule.count(after, middle, anchor=after) + schedule.count(middle, after + length, anchor=after)
    assert (whole > 0) == (schedule.latest_until(after + length, after=after, anchor=after) is not None)


@given(random.expressions, random.zones, random.moments)
@settings(max_examples=examples(100), deadline=None)
def test_literal_algorithm_agrees_with_the_policy_algorithm(expression: str, timezone: str, after: datetime) -> None:
    try:
        (rule,) = parse(expression, timezone).calendar_rules
    except ScheduleError:
        assume(False)  # an expression that never fires
    zone, start = timezones.zone(timezone), seconds(after)
    assert rule._next(zone, start) == rule._next_as_wished(zone, start)


def test_an_instant_that_two_expressions_name_is_one() -> None:
    schedule, start = parse("every day at 9am, and every hour on weekends"), datetime(2026, 1, 3, tzinfo=UTC)
    assert schedule.expressions == ("0 9 * * *", "0 * * * 0,6")
    saturday = start - timedelta(seconds=1), start + timedelta(hours=23)
    assert schedule.count(*saturday, anchor=start) == 24


def test_schedules_are_values() -> None:
    one, other = parse("*/5 * * * *", "Europe/Berlin"), parse("*/5 * * * *", "Europe/Berlin")
    assert one == other
    assert hash(one) == hash(other)
    assert one != parse("*/5 * * * *", "Europe/Paris")
    assert one != parse("*/5 * * * *", "Europe/Berlin", dst=DstPolicy(gap="shift"))
    assert not hasattr(one, "__dict__")
