"""Calendars, blackouts and moved days, against a model that looks at each day and each second of wall time."""

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.schedule import (
    WEEKDAYS,
    Blackout,
    DayRules,
    DstPolicy,
    NamedDays,
    ScheduleError,
    check_fires,
    compact,
    explain,
    moved_to,
    parse,
)
from tocsin.domain.schedule.day_rules import FAR, OpenDays, date_of, weekday_of
from tocsin.domain.schedule.moved_pattern import MovedPattern
from tocsin.domain.schedule.pattern import DAY, Pattern

from .brute_force import zone

PRAGUE = "Europe/Prague"
CZ = NamedDays(
    "cz-holidays",
    ("2026-01-01", "2026-04-03", "2026-04-06", "2026-05-01", "2026-05-08", "2026-12-24/2026-12-26", "2027-01-01"),
    until="2027-12-31",
)
US = NamedDays("us-holidays", ("2026-07-03", "2026-11-26", "2026-12-25"), until="2026-12-31")
WEEKENDS = NamedDays("weekends", weekdays=("saturday", "sunday"))
BUSINESS = DayRules((CZ, WEEKENDS), shift="next_business_day")
START = datetime(2026, 1, 1, tzinfo=UTC)


def local_days(text: str, rules: DayRules, timezone: str, after: datetime, until: datetime) -> list[str]:
    schedule = parse(text, timezone, days=rules)
    occurrences = schedule.occurrences(after, until, anchor=after)
    return [f"{o.at.astimezone(zone(timezone)):%m-%d %H:%M}{'' if o.fires else ' excluded'}" for o in occurrences]


@pytest.mark.parametrize(
    ("text", "rules", "timezone", "after", "expected"),
    [
        ("0 9 * * *", DayRules((CZ,)), PRAGUE, date(2026, 12, 23), ["12-23 09:00", *(f"12-{d} 09:00 excluded" for d in (24, 25, 26)), "12-27 09:00"]),
        ("0 9 * * *", DayRules((US,)), "America/New_York", date(2026, 11, 25), ["11-25 09:00", "11-26 09:00 excluded", "11-27 09:00", "11-28 09:00", "11-29 09:00"]),
        # 24 December is a Thursday: the first business day after it is Monday.
        ("0 9 24 12 *", BUSINESS, PRAGUE, date(2026, 12, 24), ["12-24 09:00 excluded", "12-28 09:00"]),
        # A month end on a Sunday moves into the next month.
        ("0 9 L * *", BUSINESS, PRAGUE, date(2026, 5, 30), ["05-31 09:00 excluded", "06-01 09:00"]),
        # Thursday to Sunday all move to a Monday that has the time itself: it fires once.
        ("0 9 * * *", BUSINESS, PRAGUE, date(2026, 12, 24), [*(f"12-{d} 09:00 excluded" for d in (24, 25, 26, 27)), "12-28 09:00"]),
        # Three closed days at once move to one Monday.
        ("0 9 25-27 12 *", BUSINESS, PRAGUE, date(2026, 12, 24), [*(f"12-{d} 09:00 excluded" for d in (25, 26, 27)), "12-28 09:00"]),
        # `only` without a weekend among its days, and a weekend that is open but is no business day.
        ("0 9 3 4 *", DayRules((CZ,), shift="next_business_day"), PRAGUE, date(2026, 4, 3), ["04-03 09:00 excluded", "04-07 09:00"]),
        ("0 9 * * *", DayRules(only=(NamedDays("trading", ("2026-01-02", "2026-01-05")),)), PRAGUE, date(2026, 1, 1), ["01-01 09:00 excluded", "01-02 09:00", *(f"01-0{d} 09:00 excluded" for d in (3, 4)), "01-05 09:00"]),
    ],
)  # fmt: skip
def test_days_are_left_out_and_moved(
    text: str, rules: DayRules, timezone: str, after: date, expected: list[str]
) -> None:
    begin = datetime(after.year, after.month, after.day, tzinfo=zone(timezone)).astimezone(UTC) - timedelta(seconds=1)
    assert local_days(text, rules, timezone, begin, begin + timedelta(days=5)) == expected


def test_moved_time_obeys_the_clocks() -> None:
    """29 March 2026 has no 02:30 in Prague, and 25 October has it twice."""
    sundays_open = NamedDays("closed", ("2026-03-27/2026-03-28", "2026-10-23/2026-10-24"))
    gap = parse("30 2 27 3 *", PRAGUE, days=DayRules((sundays_open,), shift="next_business_day"))
    assert [o.at for o in gap.occurrences(START, START + timedelta(days=180), anchor=START) if o.fires] == [
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    ]
    # The zone of New York changes its clocks on Sundays too; Iran changed them on weekdays.
    closed = NamedDays("closed", ("2022-03-20/2022-03-21",))
    days = DayRules((closed,), shift="next_business_day")
    after, until = datetime(2022, 3, 1, tzinfo=UTC), datetime(2022, 4, 1, tzinfo=UTC)
    for dst, expected in ((None, []), (DstPolicy(gap="shift"), [datetime(2022, 3, 21, 20, 30, tzinfo=UTC)])):
        schedule = parse("0 0 20 3 *", "Asia/Tehran", dst=dst, days=days)
        occurrences = list(schedule.occurrences(after, until, anchor=after))
        assert [o.at for o in occurrences if o.fires] == expected
        assert sum(o.skipped_local is not None for o in occurrences) == (not expected)


def test_blackout_ends_before_its_last_moment() -> None:
    rules = DayRules(blackout=(Blackout("2026-03-01T10:00", "2026-03-01T11:00+01:00", "migration"),))
    schedule = parse("*/30 * * * *", PRAGUE, days=rules)
    begin = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
    occurrences = list(schedule.occurrences(begin, begin + timedelta(hours=1, minutes=30), anchor=begin))
    assert [(o.at.minute, o.excluded) for o in occurrences] == [(30, 2), (0, 0)]
    assert str(schedule.exclusion(occurrences[0].at)) == (
        "the blackout from 2026-03-01T10:00 to 2026-03-01T11:00+01:00 (migration)"
    )
    assert schedule.exclusion(occurrences[1].at) is None


def test_calendar_ends_with_its_last_day() -> None:
    late = datetime(2028, 1, 1, tzinfo=UTC)
    assert parse("@daily", PRAGUE, days=DayRules((CZ,))).next_after(late, anchor=late) is not None
    only = parse("@daily", PRAGUE, days=DayRules(only=(CZ,)))
    assert only.next_after(late, anchor=late) is None
    assert str(only.exclusion(late)) == "2028-01-01 is no day of cz-holidays; cz-holidays is known up to 2027-12-31"
    with pytest.raises(ScheduleError, match="leave out each of its times") as raised:
        check_fires(only, late)
    assert raised.value.code == "never-fires"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("* * * * 6", DayRules((WEEKENDS,))),
        ("@every 5s", DayRules((NamedDays("all", weekdays=WEEKDAYS),))),
        ("at 2026-12-24T09:00", DayRules((CZ,))),
        ("0 0 29 2 *", DayRules(only=(CZ,), shift="next_business_day")),
    ],
)
def test_schedule_without_an_open_time_never_fires(text: str, rules: DayRules) -> None:
    with pytest.raises(ScheduleError) as raised:
        check_fires(parse(text, PRAGUE, days=rules), START)
    assert raised.value.code == "never-fires"


def test_single_instant_moves() -> None:
    schedule = parse("at 2026-12-24T09:00", PRAGUE, days=BUSINESS)
    monday = datetime(2026, 12, 28, 8, tzinfo=UTC)
    assert schedule.only_instant == monday == schedule.next_after(START, anchor=START)
    assert moved_to(schedule, datetime(2026, 12, 24, 8, tzinfo=UTC)) == monday


def test_interval_keeps_its_count_over_closed_days() -> None:
    schedule = parse("@every 7h", PRAGUE, days=DayRules((CZ,)))
    begin = datetime(2026, 12, 23, 12, tzinfo=UTC)
    fires = [o.at for o in schedule.occurrences(begin, begin + timedelta(days=5), anchor=begin) if o.fires]
    every = parse("@every 7h", PRAGUE).occurrences(begin, begin + timedelta(days=5), anchor=begin)
    closed = {24, 25, 26}
    assert fires == [o.at for o in every if o.at.astimezone(zone(PRAGUE)).day not in closed]


def test_closed_year_is_passed_by_day() -> None:
    """Nothing enumerates its thirty million seconds."""
    rules = DayRules((NamedDays("closed", ("2026-01-02/2027-01-01",)),))
    schedule = parse("* * * * * *", "UTC", days=rules)
    opens = datetime(2027, 1, 2, tzinfo=UTC)
    assert schedule.next_after(START + timedelta(days=1), anchor=START) == opens
    occurrences = list(schedule.occurrences(START + timedelta(days=1) - timedelta(seconds=1), opens, anchor=START))
    assert len(occurrences) == 366
    assert sum(o.excluded for o in occurrences) == 365 * 86_400
    assert schedule.count(START, opens, anchor=START) == 86_400


def test_explanation_names_calendars_and_their_end() -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    explanation = explain("0 9 1 * *", PRAGUE, now, days=DayRules((US, WEEKENDS), shift="next_business_day"))
    assert "except on days of us-holidays and weekends, whose times move" in explanation.meaning
    assert [w for w in explanation.warnings if "us-holidays" in w] == [
        "the calendar us-holidays is known up to 2026-12-31; then none of its days is excluded"
    ]


def test_dates_are_stored_as_ranges() -> None:
    days = [date(2026, 12, 26), date(2026, 12, 24), date(2026, 12, 25), date(2027, 1, 1), date(2027, 1, 1)]
    assert compact(map(date.isoformat, days)) == ("2026-12-24/2026-12-26", "2027-01-01")


def test_first_listed_day_may_be_far_ahead() -> None:
    """Until then each week is closed, by two calendars together."""
    rules = DayRules((WEEKENDS,), (NamedDays("release", ("2027-02-01",)),))
    schedule = parse("0 9 * * *", "UTC", days=rules)
    assert schedule.next_after(START, anchor=START) == datetime(2027, 2, 1, 9, tzinfo=UTC)
    assert schedule.count(START, START + timedelta(days=3_650), anchor=START) == 1


WINDOW = [date(2026, 3, 20) + timedelta(days=n) for n in range(20)]
DAYS = st.lists(st.sampled_from([day.isoformat() for day in WINDOW]), max_size=12).map(compact)
RULES = st.builds(
    lambda exclude, only, weekdays, shift, has_only: DayRules(
        (NamedDays("a", exclude, weekdays),), (NamedDays("b", only),) if has_only else (), (), shift
    ),
    DAYS,
    DAYS,
    st.lists(st.sampled_from(WEEKDAYS), max_size=2, unique=True).map(tuple),
    st.sampled_from(["skip", "next_business_day"]),
    st.booleans(),
)
EXPRESSIONS = st.sampled_from(
    [
        "0 9 * * *",
        "30 2 * * *",
        "30 2 28 3 *",
        "15 */6 * * 1-5",
        "0 0 * * 6",
        "30 1,2,3 27-30 3 *",
        "45 23 L * *",
        "@daily",
    ]
)
ZONES = st.sampled_from(["UTC", PRAGUE, "America/New_York", "Asia/Beirut"])
DST = st.sampled_from([None, DstPolicy(gap="shift", fold="both")])


def is_closed(rules: DayRules, day: date) -> bool:
    def has(calendar: NamedDays) -> bool:
        ranges = [text.split("/") for text in calendar.days]
        listed = any(ends[0] <= day.isoformat() <= ends[-1] for ends in ranges)
        return listed or WEEKDAYS[day.weekday()] in calendar.weekdays

    return any(map(has, rules.exclude)) or (bool(rules.only) and not any(map(has, rules.only)))


def target(rules: DayRules, day: date) -> date | None:
    later = (day + timedelta(days=n) for n in range(1, 367))
    return next((d for d in later if d.weekday() < 5 and not is_closed(rules, d)), None)


FAR_APART = st.builds(
    lambda exclude, only, weekdays, others, has_only: DayRules(
        (NamedDays("a", exclude, weekdays),), (NamedDays("b", only, others),) if has_only else ()
    ),
    *[st.lists(st.sampled_from(["2026-03-21", "2026-03-23/2026-04-02", "2027-01-04", "2027-03-01/2027-05-02"]), max_size=3).map(compact)] * 2,
    *[st.lists(st.sampled_from(WEEKDAYS), max_size=7, unique=True).map(tuple)] * 2,
    st.booleans(),
)  # fmt: skip
FIRST = (date(2026, 1, 1) - date(1970, 1, 1)).days


@given(FAR_APART, st.lists(st.integers(FIRST, FIRST + 600), min_size=1, max_size=4))
def test_open_days_are_those_of_the_model(rules: DayRules, starts: list[int]) -> None:
    """In any order of the searches, because one remembers the last."""
    open_days = OpenDays(rules)
    closed = {day: is_closed(rules, date_of(day)) for day in range(FIRST, FIRST + 1_200)}

    def first(days: Iterable[int], wanted: Callable[[int], bool]) -> int | None:
        return next(filter(wanted, days), None)

    for start in starts:
        days = range(start + 1, FIRST + 1_200)
        business = first(days, lambda day: weekday_of(day) < 5 and not closed[day])
        assert open_days.next_business(start) == business
        assert open_days.closed_from(start + 1) == first(days, closed.__getitem__)
        if closed[start]:
            assert open_days.turn(start) == (first(days, lambda day: not closed[day]) or FAR)


def model_days(rules: DayRules, pattern: Pattern, first: date, last: date) -> dict[date, set[int]]:
    """The times of day at which a pattern fires on each day, found day by day."""
    epoch = date(1970, 1, 1)
    fires: dict[date, set[int]] = {}
    day = first - timedelta(days=400)
    while day <= last:
        start = (day - epoch).days * DAY
        times, at = set[int](), pattern.next(start)
        while at is not None and at < start + DAY:
            times.add(at - start)
            at = pattern.next(at + 1)
        closed = is_closed(rules, day)
        on = target(rules, day) if closed and rules.shift != "skip" else None if closed else day
        if times and on is not None:
            fires.setdefault(on, set()).update(times)
        day += timedelta(days=1)
    return fires


@given(EXPRESSIONS, ZONES, DST, RULES, st.integers(0, 20 * 24), st.integers(1, 15 * 24))
def test_schedule_fires_as_the_model_says(
    text: str, timezone: str, dst: DstPolicy | None, rules: DayRules, start: int, length: int
) -> None:
    after = datetime(2026, 3, 20, tzinfo=UTC) + timedelta(hours=start)
    until = after + timedelta(hours=length)
    schedule, plain = parse(text, timezone, dst=dst, days=rules), parse(text, timezone, dst=dst)
    occurrences = list(schedule.occurrences(after, until, anchor=after))
    fires = [o.at for o in occurrences if o.fires]
    # Each wall time that the model names, without those of a clock change, which has rules of its own.
    (written,) = plain.calendar_rules
    assert isinstance(written.pattern, Pattern)
    first, last = (at.astimezone(zone(timezone)).date() for at in (after, until))
    expected = set[datetime]()
    for day, times in model_days(rules, written.pattern, first, last).items():
        for time in times:
            wall = datetime(day.year, day.month, day.day) + timedelta(seconds=time)  # noqa: DTZ001 - on the wall clock
            instants = {wall.replace(tzinfo=zone(timezone), fold=fold).astimezone(UTC) for fold in (0, 1)}
            if len(instants) == 1 and after < min(instants) <= until:
                expected |= instants
    changed = {at for at in fires if _is_near_a_change(timezone, at)}
    assert set(fires) - changed == {at for at in expected if not _is_near_a_change(timezone, at)}
    # Also around clock changes, everything that the plain schedule fires is fired or excluded, once and in order.
    plainly = [o.at for o in plain.occurrences(after, until, anchor=after) if o.fires]
    excluded = list(schedule.excluded_instants(after, until, anchor=after))
    assert set(plainly) <= set(fires) | set(excluded)
    assert set(fires).isdisjoint(excluded)
    assert all(is_closed(rules, at.astimezone(zone(timezone)).date()) for at in excluded)
    assert sum(o.excluded for o in occurrences) == len(excluded)
    assert [o.at for o in occurrences] == sorted(o.at for o in occurrences)
    assert schedule.count(after, until, anchor=after) == len(fires)
    assert schedule.next_after(after, anchor=after) == next(iter(fires), schedule.next_after(until, anchor=after))
    assert schedule.latest_until(until, after=after, anchor=after) == (fires[-1] if fires else None)


def _is_near_a_change(timezone: str, at: datetime) -> bool:
    offsets = {(at + timedelta(hours=h)).astimezone(zone(timezone)).utcoffset() for h in (-3, 0, 3)}
    return len(offsets) > 1


@given(EXPRESSIONS, ZONES, RULES, st.integers(1, 15 * 24), st.integers(1, 200))
def test_adjoining_windows_tile(text: str, timezone: str, rules: DayRules, length: int, split: int) -> None:
    after = datetime(2026, 3, 20, tzinfo=UTC)
    until = after + timedelta(hours=length)
    middle = min(until, after + timedelta(hours=split))
    rules = DayRules(rules.exclude, rules.only, (Blackout("2026-03-25T01:15", "2026-03-26T12:00"),), rules.shift)
    schedule = parse(text, timezone, days=rules)
    whole = list(schedule.occurrences(after, until, anchor=after))
    parts = [
        *schedule.occurrences(after, middle, anchor=after),
        *schedule.occurrences(middle, until, anchor=after),
    ]
    assert [o for o in whole if not o.excluded] == [o for o in parts if not o.excluded]
    assert sum(o.excluded for o in whole) == sum(o.excluded for o in parts)


@given(EXPRESSIONS, RULES, st.integers(0, 19 * DAY), st.integers(0, 10 * DAY))
def test_moved_times_are_found_from_both_sides(text: str, rules: DayRules, start: int, length: int) -> None:
    schedule = parse(text, "UTC", days=DayRules(rules.exclude, rules.only, (), "next_business_day"))
    moving = [rule.pattern for rule in schedule.calendar_rules if isinstance(rule.pattern, MovedPattern)]
    begin = (date(2026, 3, 20) - date(1970, 1, 1)).days * DAY + start
    for pattern in moving:
        walls, at = list[int](), pattern.next(begin)
        while at is not None and at < begin + length:
            walls.append(at)
            at = pattern.next(at + 1)
        assert pattern.count(begin, begin + length) == len(walls)
        backwards, at = list[int](), pattern.previous(begin + length - 1)
        while at is not None and at >= begin:
            backwards.append(at)
            at = pattern.previous(at - 1)
        assert walls == backwards[::-1]
