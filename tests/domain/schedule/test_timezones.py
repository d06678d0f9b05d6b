"""Zones by name (`ojs-cron` 5.1, 5.3; CRON-13 to 15, S03), and the facts that the calendar takes for granted."""

import shutil
import struct
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from zoneinfo import available_timezones

import pytest

from tocsin.domain.schedule import (
    ScheduleError,
    TimezoneDatabase,
    install,
    parse,
    refresh,
    timezones,
    validate_timezone,
)

SUMMER = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "name",
    [
        *("UTC", "America/New_York", "America/Los_Angeles", "Europe/London", "Europe/Berlin", "Asia/Tokyo"),
        *("Asia/Kolkata",),
        *("Australia/Sydney", "Pacific/Auckland", "America/Argentina/Buenos_Aires", "Etc/UTC", "US/Eastern", "Japan"),
    ],
)
def test_cron_13_iana_names_are_taken(name: str) -> None:
    assert validate_timezone(name) == name


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("+05:00", "the zone of the place"),
        ("-08:00", "the zone of the place"),
        ("UTC+5", "the zone of the place"),
        ("CET+1", "the zone of the place"),
        ("GMT-3", "the zone of the place"),
        ("UTC+05:30", "the zone of the place"),
        ("+0530", "the zone of the place"),
        ("EST", "America/New_York"),
        ("PST", "America/Los_Angeles"),
        ("CST", "America/Chicago"),
        ("CEST", "Europe/Berlin"),
        ("MST", "America/Denver"),
        ("HST", "Pacific/Honolulu"),
        ("EST5EDT", "America/New_York"),
        ("XYZ", ""),
        ("GMT0", "UTC"),
        ("Z", "UTC"),
    ],
)
def test_cron_14_offsets_and_abbreviations_are_refused(name: str, suggestion: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        validate_timezone(name)
    assert refused.value.code == "invalid-timezone"
    assert refused.value.suggestion.startswith(suggestion)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("America/New York", "America/New_York"),
        ("new york", "America/New_York"),
        ("utc", "UTC"),
        ("pst", "America/Los_Angeles"),
        ("America", None),
        ("posix/Europe/Berlin", None),
        ("right/UTC", None),
        ("localtime", None),
        ("posixrules", None),
        ("Factory", None),
        ("", None),
        ("../../etc/passwd", None),
        ("Europe/Berlin\0", None),
        ("x" * 5000, None),
        ("Europe/Berlin ", "Europe/Berlin"),
    ],
)
def test_cron_13_unknown_zone_is_refused_with_a_suggestion(name: str, suggestion: str | None) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse("* * * * *", name)
    assert refused.value.code == "invalid-timezone"
    assert suggestion is None or refused.value.suggestion == suggestion
    assert len(str(refused.value)) < 600


def test_cron_15_zone_is_utc_by_default() -> None:
    assert parse("0 9 * * *").timezone == "UTC"
    assert parse("0 9 * * *").next_after(SUMMER, anchor=SUMMER) == SUMMER.replace(hour=9)


def test_zone_with_a_fixed_offset_is_a_warning() -> None:
    assert "sign is reversed" in parse("0 9 * * *", "Etc/GMT+5").warnings[0]
    assert parse("0 9 * * *", "Etc/GMT").warnings == ()


def test_every_allowed_zone_can_be_used() -> None:
    names = timezones.timezone_database().names
    assert names <= available_timezones()
    assert len(names) > 500
    for name in names:
        assert parse("0 12 * * *", name).next_after(SUMMER, anchor=SUMMER) is not None


def test_s03_new_zone_data_applies_to_existing_schedules(tmp_path: Path) -> None:
    schedule = parse("0 9 * * *", "Europe/Berlin")
    assert schedule.next_after(SUMMER, anchor=SUMMER) == datetime(2026, 7, 1, 7, tzinfo=UTC)
    # A government decides that Berlin has Tokyo's time from now on.
    package = Path(str(files("tzdata")))
    (tmp_path / "zoneinfo" / "Europe").mkdir(parents=True)
    shutil.copy(package / "zoneinfo" / "Asia" / "Tokyo", tmp_path / "zoneinfo" / "Europe" / "Berlin")
    (tmp_path / "zoneinfo" / "tzdata.zi").write_text("# version 2042z\n")
    (tmp_path / "zones").write_text("UTC\nEurope/Berlin\n")
    try:
        install(TimezoneDatabase(tmp_path))
        assert timezones.timezone_database().version == "2042z"
        assert schedule.next_after(SUMMER, anchor=SUMMER) == datetime(2026, 7, 1, tzinfo=UTC) + timedelta(days=1)
        with pytest.raises(ScheduleError):
            parse("0 9 * * *", "America/New_York")
    finally:
        refreshed = refresh()
    assert refreshed.version == timezones.timezone_database().version != "2042z"
    assert schedule.next_after(SUMMER, anchor=SUMMER) == datetime(2026, 7, 1, 7, tzinfo=UTC)


def test_s03_data_without_a_version_has_an_empty_version(tmp_path: Path) -> None:
    assert TimezoneDatabase(tmp_path).version == ""


def changes(name: str) -> list[tuple[int, int, int]]:
    """Instant, offset before, offset after of every change that the file of a zone lists."""
    data = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    header = struct.Struct(">4s c 15x 6l")

    def counts(block: bytes) -> tuple[int, ...]:
        _, _, *numbers = header.unpack(block[: header.size])
        return tuple(numbers)

    utc, standard, leap, time, kind, char = counts(data)
    data = data[header.size + time * 5 + kind * 6 + char + leap * 8 + standard + utc :]
    _, _, _, time, kind, _ = counts(data)
    body = data[header.size :]
    instants = struct.unpack(f">{time}q", body[: time * 8])
    offsets = [struct.unpack(">lBB", body[time * 9 + 6 * n : time * 9 + 6 * n + 6])[0] for n in range(kind)]
    after = [offsets[n] for n in body[time * 8 : time * 9]]
    before = [offsets[0], *after][: len(after)]
    return [change for change in zip(instants, before, after, strict=True) if change[1] != change[2]]


ALL_CHANGES = {name: changes(name) for name in sorted(timezones.timezone_database().names)}


def test_no_two_clock_changes_are_too_close() -> None:
    gaps = [later[0] - earlier[0] for found in ALL_CHANGES.values() for earlier, later in pairwise(found)]
    assert min(gaps) > timezones._LOOK


def test_no_clock_change_exceeds_the_lookback() -> None:
    assert max(abs(after - before) for found in ALL_CHANGES.values() for _, before, after in found) < timezones.FARTHEST


def test_spans_are_the_changes_that_the_files_list() -> None:
    zones_of_their_own = {tuple(listed): name for name, listed in ALL_CHANGES.items()}
    for listed, name in zones_of_their_own.items():
        zone = timezones.zone(name)
        for at, before, after in listed:
            if at > 0:
                span = zone.span(at)
                assert (span.start, span.before, span.offset) == (at, before, after), name
                assert zone.span(at - 1).offset == before, name
                assert zone.span(at - 1).end == at, name
