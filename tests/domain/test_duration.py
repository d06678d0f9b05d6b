"""Durations: what is read, what is refused and in which words, and that writing one loses nothing."""

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


EXAMPLES = "write 30s, 5m, 1h30m, 500ms, PT30S or a number of seconds"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("soon", f"not a duration: {EXAMPLES}"),
        ("", f"not a duration: {EXAMPLES}"),
        ("1m30", f"not a duration: {EXAMPLES}"),
        ("30s1h", f"not a duration: {EXAMPLES}"),
        ("1:30", f"not a duration: {EXAMPLES}"),
        ("5 minutes", f"not a duration: {EXAMPLES}"),
        ("-5s", f"not a duration: {EXAMPLES}"),
        ("P", f"not a duration: {EXAMPLES}"),
        ("PT", f"not a duration: {EXAMPLES}"),
        ("P1DT", f"not a duration: {EXAMPLES}"),
        ("٣s", f"not a duration: {EXAMPLES}"),
        (True, f"not a duration: {EXAMPLES}"),
        (None, f"not a duration: {EXAMPLES}"),
        ([30], f"not a duration: {EXAMPLES}"),
        ("30", "a duration in text needs a unit: write 30s"),
        ("P1Y", "years and months have no fixed length; write days, e.g. P30D"),
        ("P1M", "years and months have no fixed length; write days, e.g. P30D"),
        ("P2Y3M4DT1H", "years and months have no fixed length; write days, e.g. P30D"),
        (-1, "a duration cannot be negative"),
        (-(10**400), "a duration cannot be negative"),
        (float("nan"), "a duration cannot be negative"),
        (10**400, "a duration cannot be longer than ten years"),
        (float("inf"), "a duration cannot be longer than ten years"),
        ("521w6d", "a duration cannot be longer than ten years"),
    ],
)
def test_refuses(written: object, reason: str) -> None:
    with pytest.raises(duration.DurationError) as refused:
        duration.parse(written)
    assert str(refused.value) == reason


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
