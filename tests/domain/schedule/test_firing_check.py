"""The reasons for which a schedule is refused that never fires."""

from datetime import UTC, datetime
from typing import Final

import pytest

from tocsin.domain import ledger
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.schedule import ScheduleError, check_fires, explain, parse

NOW: Final = datetime(2026, 11, 28, 3, tzinfo=UTC)
NEW_YORK: Final = "America/New_York"
SKIPPED: Final = "30 2 * 3 0#2"  # New York's clocks go forward then


def refusal(text: str) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        check_fires(parse(text, NEW_YORK), NOW)
    assert (caught.value.code, caught.value.text) == ("never-fires", text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("0 8 * * * until 2026-11-27T08:00", "2026-11-28T08:00:00-05:00"),
        ("every day at 8am until 2025-01-01T00:00", "2026-11-28T08:00:00-05:00"),
        ("@every 1h until 2025-01-01T00:00", "2026-11-27T23:00:00-05:00"),
    ],
)
def test_end_in_the_past_is_named(text: str, following: str) -> None:
    error = refusal(text)
    assert text[error.start : error.start + error.length] == text[text.index("until") :]
    assert "is past (now is 2026-11-28T03:00:00Z)" in error.problem
    assert error.suggestion.startswith(following)


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("0 8 29 2 * until 2027-12-01T00:00", "2028-02-29T08:00:00-05:00"),
        ("@every 1h until 2026-11-27T22:30", "2026-11-27T23:00:00-05:00"),
        ("0 8 * * * from 2027-03-01T09:00 until 2027-03-01T12:00", "2027-03-02T08:00:00-05:00"),
    ],
)
def test_end_before_the_next_time_is_named(text: str, following: str) -> None:
    error = refusal(text)
    assert text[error.start :].startswith("until ")
    assert following in error.problem
    assert error.suggestion.startswith(following)


def test_suggested_end_is_one_that_fits() -> None:
    now = NOW.replace(microsecond=300_000)
    with pytest.raises(ScheduleError) as caught:
        check_fires(parse("@every 1h until 2026-11-28T03:30"), now)
    suggested = caught.value.suggestion.split()[0]
    check_fires(parse(f"@every 1h until {suggested}"), now)


@pytest.mark.parametrize("bounds", ["", " until 2025-01-01T00:00", " from 2027-01-01T00:00 until 2030-01-01T00:00"])
def test_only_skipped_times_blame_the_clocks(bounds: str) -> None:
    assert f"the clocks of {NEW_YORK} skip" in refusal(SKIPPED + bounds).problem


def test_year_beyond_the_calendar_is_named() -> None:
    error = refusal("0 8 29 2 * from 9997-12-31T00:00")
    assert ("9999" in error.problem, "clocks" in error.problem) == (True, False)


@pytest.mark.parametrize(
    ("text", "code"),
    [("0 8 * * * until 2025-01-01T00:00", "in-the-past"), ("0 8 29 2 * until 2027-12-01T00:00", "never-fires")],
)
def test_only_an_end_before_now_is_past(text: str, code: str) -> None:
    definition = JobDefinition(name="j", function="f", schedule=text)
    with pytest.raises(DefinitionError) as caught:
        ledger.define(ledger.initial, definition, now=NOW)
    assert [(problem.field, problem.code) for problem in caught.value.problems] == [("schedule", code)]


def test_past_instant_is_explained_without_error() -> None:
    assert explain("at 2025-01-01T00:00", "UTC", NOW).next == ()
