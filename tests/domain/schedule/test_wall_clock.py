"""Wall-clock times that the clocks skip or repeat, to the second."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.schedule import timezones
from tocsin.domain.schedule.clock_changes import instants_of, is_repeated, local_time, shifted
from tocsin.domain.schedule.errors import ScheduleError

NEW_YORK = "America/New_York"
SECOND = timedelta(seconds=1)
FOLD = datetime(2026, 11, 1, 6, tzinfo=UTC)
"""02:00 becomes 01:00."""


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("local", "instants"),
    [
        ("2026-03-08T01:59:59", ["2026-03-08T06:59:59"]),
        ("2026-03-08T02:00:00", []),
        ("2026-03-08T02:59:59", []),
        ("2026-03-08T03:00:00", ["2026-03-08T07:00:00"]),
        ("2026-11-01T00:59:59", ["2026-11-01T04:59:59"]),
        ("2026-11-01T01:00:00", ["2026-11-01T05:00:00", "2026-11-01T06:00:00"]),
        ("2026-11-01T01:59:59", ["2026-11-01T05:59:59", "2026-11-01T06:59:59"]),
        ("2026-11-01T02:00:00", ["2026-11-01T07:00:00"]),
        ("2026-07-01T12:00:00.75", ["2026-07-01T16:00:00"]),
        ("2026-11-01T01:30:00.75", ["2026-11-01T05:30:00", "2026-11-01T06:30:00"]),
    ],
)
def test_a_wall_time_has_its_instants(local: str, instants: list[str]) -> None:
    assert instants_of(NEW_YORK, wall(local)) == tuple(utc(text) for text in instants)


def test_without_changes_a_time_is_one_instant() -> None:
    assert instants_of("UTC", wall("2026-11-01T01:30")) == (utc("2026-11-01T01:30"),)
    assert instants_of("Asia/Kathmandu", wall("2026-11-01T05:45")) == (utc("2026-11-01T00:00"),)


def test_a_skipped_time_has_the_old_offset() -> None:
    assert shifted(NEW_YORK, wall("2026-03-08T02:30:00.75")) == utc("2026-03-08T07:30")


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (FOLD - SECOND, "2026-11-01T01:59:59-04:00"),
        (FOLD, "2026-11-01T01:00:00-05:00"),
        (utc("2026-03-08T06:59:59"), "2026-03-08T01:59:59-05:00"),
        (utc("2026-03-08T07:00:00"), "2026-03-08T03:00:00-04:00"),
    ],
)
def test_an_instant_is_shown_with_its_offset(at: datetime, shown: str) -> None:
    assert local_time(NEW_YORK, at).isoformat() == shown


@pytest.mark.parametrize(
    ("after", "repeated"),
    [
        (-3600 * SECOND, False),
        (-SECOND, False),
        (0 * SECOND, True),
        (3599 * SECOND, True),
        (3600 * SECOND, False),
        (timedelta(days=30), False),
        (timedelta(days=140), False),
    ],
)
def test_the_second_pass_of_an_hour_is_repeated(after: timedelta, *, repeated: bool) -> None:
    assert is_repeated(NEW_YORK, FOLD + after) is repeated


@pytest.mark.parametrize("seconds", [0, 1, 1800])
def test_nothing_is_repeated_behind_a_gap(seconds: int) -> None:
    assert not is_repeated(NEW_YORK, utc("2026-03-08T07:00") + seconds * SECOND)


@pytest.mark.parametrize("name", ["../zones", "posix/UTC", "zone.tab", "Europe", "/etc/localtime", "EST", ""])
def test_only_an_allowed_zone_is_opened(name: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        timezones.packaged().zone(name)
    assert refused.value.code == "invalid-timezone"


def test_a_database_read_again_allows_the_same_zones() -> None:
    names = timezones.packaged().names
    assert {"UTC", "GMT", "Europe/Berlin", "Etc/GMT+5"} <= names
    assert not {"EST", "CET", "GMT0", "Factory", "PST8PDT", "localtime"} & names


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("Europe/Berln", "Europe/Berlin"),
        ("Kathmandoo", "Asia/Kathmandu"),
        ("UTC", ""),
    ],
)
def test_a_zone_is_suggested(name: str, suggestion: str) -> None:
    names = timezones.packaged().names
    if not suggestion:
        assert timezones.validate(name, names) == name
        return
    with pytest.raises(ScheduleError) as refused:
        timezones.validate(name, names)
    error = refused.value
    assert (error.suggestion, error.text, error.length) == (suggestion, name, len(name))
