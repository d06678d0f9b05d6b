"""Schedules that begin and end: `from` and `until`."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.schedule.strategies import five_fields
from tocsin.domain.schedule import Schedule, ScheduleError, explain, next_instants, parse, zone_in

START = datetime(2027, 3, 1, 9, tzinfo=UTC)
END = datetime(2027, 3, 1, 12, tzinfo=UTC)
BEFORE, AFTER = datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 6, 1, tzinfo=UTC)
SPAN = "from 2027-03-01T09:00 until 2027-03-01T12:00"


def hours(text: str, *, after: datetime = BEFORE, zone: str = "UTC") -> list[int]:
    return [at.hour for at in next_instants(parse(text, zone), after, 9)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"0 * * * * {SPAN}", [9, 10, 11, 12]),
        (f"@every 1h {SPAN}", [9, 10, 11, 12]),
        (f"@every 2h {SPAN}", [9, 11]),
        (f"every hour {SPAN}", [9, 10, 11, 12]),
        (f"every hour UTC {SPAN}", [9, 10, 11, 12]),
        (f"0 9,10 * * * {SPAN}", [9, 10]),
        ("0 * * * * FROM 2027-03-01 09:00:01 UNTIL 2027-03-01 12:59:59", [10, 11, 12]),
        ("0 * * * * from 2027-03-01T09:00+01:00 until 2027-03-01 09:00 +00:00", [8, 9]),
        ("every hour from 9am to 5pm from 2027-03-01T16:00 until 2027-03-02T09:00", [16, 17, 9]),
    ],
)
def test_a_schedule_fires_between_its_bounds(text: str, expected: list[int]) -> None:
    assert hours(text) == expected


def test_bounds_are_local_times() -> None:
    schedule = parse(f"0 * * * * {SPAN}", "Europe/Berlin")
    assert (schedule.starts_at, schedule.ends_at) == (START - timedelta(hours=1), END - timedelta(hours=1))


def test_an_end_needs_no_start() -> None:
    schedule = parse("@every 1h until 2027-03-01T12:00")
    assert schedule.next_after(END - timedelta(hours=1), anchor=END - timedelta(hours=2)) == END
    assert schedule.next_after(END, anchor=BEFORE) is None


def test_intervals_count_from_the_start() -> None:
    schedule = parse("@every 90m from 2027-03-01T09:00")
    for anchor in (BEFORE, START + timedelta(minutes=7)):
        assert schedule.next_after(START, anchor=anchor) == START + timedelta(minutes=90)
        assert schedule.next_after(BEFORE, anchor=anchor) == START


PARTS = st.builds(timedelta, minutes=st.integers(0, 60 * 24 * 45))


@given(five_fields, PARTS, PARTS, PARTS, PARTS)
def test_bounds_only_leave_out(
    text: str, since: timedelta, until: timedelta, first: timedelta, last: timedelta
) -> None:
    """Each query of a bounded schedule agrees with the same query without bounds."""
    since_at, until_at = START + min(since, until), START + max(since, until)
    starts, ends = START + min(first, last), START + max(first, last)
    try:
        whole = parse(text)
        bounded = parse(f"{text} from {starts:%Y-%m-%dT%H:%M} until {ends:%Y-%m-%dT%H:%M}")
    except ScheduleError:  # it never fires
        return
    expected = [o.at for o in whole.occurrences(since_at, until_at, anchor=START) if starts <= o.at <= ends]
    assert [o.at for o in bounded.occurrences(since_at, until_at, anchor=START)] == expected
    assert bounded.count(since_at, until_at, anchor=START) == len(expected)
    assert bounded.count(since_at, until_at, anchor=START, most=2) == min(2, len(expected))
    assert bounded.latest_until(until_at, after=since_at, anchor=START) == (expected[-1] if expected else None)
    following = bounded.next_after(since_at, anchor=START)
    assert (following if following is not None and following <= until_at else None) == next(iter(expected), None)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("0 * * * * until 2027-03-01", "invalid-instant", "2027-03-01"),
        ("0 * * * * until 2027-13-01T00:00", "invalid-instant", "2027-13-01T00:00"),
        (f"0 * * * * {SPAN} until 2027-03-01T12:00", "invalid-instant", "until"),
        ("0 * * * * until 2027-03-01T12:00 from 2027-03-01T09:00", "invalid-instant", "from"),
        ("0 * * * * from 2027-03-01T09:00 until 2027-03-01T08:00", "never-fires", "until 2027-03-01T08:00"),
        ("0 8 * * * from 2027-03-01T09:00 until 2027-03-01T12:00", "never-fires", "until 2027-03-01T12:00"),
        (" until 2027-03-01T12:00", "invalid-expression", " "),
        ("every mondya until 2027-03-01T12:00", "invalid-phrase", "mondya"),
        ("0 25 * * * until 2027-03-01T12:00", "invalid-field", "25"),
        ("at 2027-03-01T09:00 until 2027-03-01T12:00", "invalid-instant", "2027-03-01T09:00 until 2027-03-01T12:00"),
        ("every day at 9am Asia/Tokyo until 2027-03-01T12:00", "contradictory-timezone", "Asia/Tokyo"),
    ],
)
def test_a_wrong_bound_is_placed(text: str, code: str, place: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.text) == (code, text)
    assert text[caught.value.start :].startswith(place)


def test_the_zone_of_a_phrase_precedes_its_bounds() -> None:
    assert zone_in(f"every day at 9am Asia/Tokyo {SPAN}") == "Asia/Tokyo"


def test_the_meaning_names_the_bounds() -> None:
    sentence = explain(f"@every 1h {SPAN}", None, BEFORE).meaning
    assert sentence.endswith("from 2027-03-01 09:00:00 UTC until 2027-03-01 12:00:00 UTC")


def test_a_schedule_without_bounds_has_none() -> None:
    schedule: Schedule = parse("every hour from 9am to 5pm")
    assert (schedule.starts_at, schedule.ends_at) == (None, None)
