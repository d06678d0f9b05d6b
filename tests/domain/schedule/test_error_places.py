"""The place of a mistake in a text, and what to write instead."""

from datetime import UTC, datetime

import pytest

from tocsin.domain.schedule import ScheduleError, parse

EXAMPLE = "at 2027-03-01T09:00:00"


@pytest.mark.parametrize(
    ("text", "place", "suggestion"),
    [
        ("0 0 1,LX * *", "LX", ""),
        ("0 0 1,15,lx3 * *", "lx3", ""),
        ("0 0 1,W * *", "W", "15W"),
        ("0 0 1,15,1xW * *", "1xW", "15W"),
        ("0 0 1,٣W * *", "٣", ""),
        ("0 0 1,15,40W * *", "40", ""),
        ("0 0 * * 1,2,L", "L", "5L for the last Friday"),
        ("0 0 * * 1,2,3#9", "9", "5#3, 5L"),
        ("0 0 * * 1,3#10", "10", "5#3, 5L"),
        ("0 0 * * 1,2,9#2", "9", ""),
        ("0 0 * * 1,2,9L", "9", ""),
        ("at 2027-03-01", "2027-03-01", EXAMPLE),
        ("at 2027-03-01T09:00:00.5", "2027-03-01T09:00:00.5", ""),
        ("at 0001-12-31T23:59:59", "0001-12-31T23:59:59", ""),
        ("at 9999-01-01T00:00", "9999-01-01T00:00", ""),
        ("at 2027-03-14T02:30", "2027-03-14T02:30", EXAMPLE),
    ],
)
def test_a_mistake_is_reported_with_its_place(text: str, place: str, suggestion: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text, "America/New_York")
    error = refused.value
    assert (error.text[error.start : error.start + error.length], error.suggestion) == (place, suggestion)
    assert error.start == text.rindex(place)


@pytest.mark.parametrize(
    ("text", "same"), [("0 0 l * *", "0 0 L * *"), ("0 0 lw * *", "0 0 LW * *"), ("0 0 * * fril", "0 0 * * 5L")]
)
def test_letters_may_be_small(text: str, same: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    one, other = parse(text), parse(same)
    assert one.next_after(start, anchor=start) == other.next_after(start, anchor=start)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("at 2027-03-01 09:00", datetime(2027, 3, 1, 14, tzinfo=UTC)),
        ("at 2027-03-01t09:00", datetime(2027, 3, 1, 14, tzinfo=UTC)),
        ("at 2027-03-01 09:00:07", datetime(2027, 3, 1, 14, 0, 7, tzinfo=UTC)),
        ("at 2027-03-01T09:00+01:00", datetime(2027, 3, 1, 8, tzinfo=UTC)),
        ("at 2027-03-01 09:00 +01:00", datetime(2027, 3, 1, 8, tzinfo=UTC)),
        ("at 0002-01-01T00:00Z", datetime(2, 1, 1, tzinfo=UTC)),
        ("at 9998-12-31T23:59:59Z", datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read(text: str, instant: datetime) -> None:
    start = datetime(1, 1, 1, tzinfo=UTC)
    assert parse(text, "America/New_York").next_after(start, anchor=start) == instant
