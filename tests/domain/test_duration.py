"""Durations: which texts are read, the code of every invalid one, and writing without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain import duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("2h45m30s", 9930.0),
        ("500ms", 0.5),
        ("1s500ms", 1.5),
        ("1d", 86_400.0),
        ("1w2d", 777_600.0),
        ("1.1m", 66.0),
        (" 30s ", 30.0),
        ("0s", 0.0),
        ("PT30S", 30.0),
        ("PT1M", 60.0),
        ("PT0.5S", 0.5),
        ("P1DT2H", 93_600.0),
        ("P2W", 1_209_600.0),
        ("PT0S", 0.0),
        (30, 30.0),
        (12.5, 12.5),
        (0, 0.0),
    ],
)
def test_reads(written: object, seconds: float) -> None:
    assert duration.parse(written) == seconds


UNREADABLE = ("invalid-duration", "")
CALENDAR_UNITS = ("duration-in-calendar-units", "P30D")
TOO_LONG = ("duration-out-of-range", "3650d")
NEGATIVE = ("duration-out-of-range", "0s")


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("soon", UNREADABLE),
        ("", UNREADABLE),
        ("1m30", UNREADABLE),
        ("30s1h", UNREADABLE),
        ("1:30", UNREADABLE),
        ("5 minutes", UNREADABLE),
        ("-5s", UNREADABLE),
        ("P", UNREADABLE),
        ("PT", UNREADABLE),
        ("P1DT", UNREADABLE),
        ("٣s", UNREADABLE),
        (True, UNREADABLE),
        (None, UNREADABLE),
        ([30], UNREADABLE),
        ("30", ("duration-without-unit", "30s")),
        ("P1Y", CALENDAR_UNITS),
        ("P1M", CALENDAR_UNITS),
        ("P2Y3M4DT1H", CALENDAR_UNITS),
        (-1, NEGATIVE),
        (-(10**400), NEGATIVE),
        (float("nan"), NEGATIVE),
        (10**400, TOO_LONG),
        (float("inf"), TOO_LONG),
        ("521w6d", TOO_LONG),
    ],
)
def test_invalid_duration_has_code_and_suggestion(written: object, problem: tuple[str, str]) -> None:
    with pytest.raises(duration.DurationError) as caught:
        duration.parse(written)
    assert (caught.value.code, caught.value.suggestion) == problem
    assert not caught.value.suggestion or duration.parse(caught.value.suggestion) <= duration.MAX_DURATION_S


@pytest.mark.parametrize("written", ["soon", "30"])
def test_error_names_every_unit(written: str) -> None:
    with pytest.raises(duration.DurationError) as caught:
        duration.parse(written)
    assert "w, d, h, m, s, ms" in str(caught.value)


@pytest.mark.parametrize("unit", ["w", "d", "h", "m", "s", "ms"])
def test_every_named_unit_is_read(unit: str) -> None:
    assert (
        duration.parse(f"90{unit}") == 90 * {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}[unit]
    )


@pytest.mark.parametrize(
    ("seconds", "iso", "short"),
    [
        (0.0, "PT0S", "0s"),
        (0.5, "PT0.5S", "0.5s"),
        (90.0, "PT1M30S", "1m30s"),
        (300.0, "PT5M", "5m"),
        (93_600.0, "PT26H", "26h"),
        (1e-7, "PT0.0000001S", "0.0000001s"),
    ],
)
def test_writes(seconds: float, iso: str, short: str) -> None:
    assert (duration.iso(seconds), duration.short(seconds)) == (iso, short)


@given(st.integers(0, int(duration.MAX_DURATION_S) * 1000).map(lambda ms: ms / 1000))
def test_what_is_written_reads_back(seconds: float) -> None:
    assert duration.parse(duration.iso(seconds)) == seconds
    assert duration.parse(duration.short(seconds)) == seconds


@given(st.floats(0, duration.MAX_DURATION_S))
def test_every_number_of_seconds_can_be_written(seconds: float) -> None:
    assert duration.parse(seconds) == seconds
    assert duration.iso(seconds).startswith("PT")
