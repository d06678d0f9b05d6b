"""The instants that other time-zone data moves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.domain.schedule.databases import decreed
from tocsin.domain.schedule import ScheduleError, TimezoneDatabase, moved, timezone_database

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
END = NOW + timedelta(days=3)


def at(day: int, hour: int) -> datetime:
    return datetime(2026, 7, day, hour, tzinfo=UTC)


def test_instants_move_with_the_clocks(tmp_path: Path) -> None:
    newer = decreed(tmp_path, Berlin="Europe/London")
    found = moved("0 9 * * *", "Europe/Berlin", None, timezone_database(), newer, NOW, END)
    assert found is not None
    assert found.removed == (at(2, 7), at(3, 7), at(4, 7))
    assert found.added == (at(2, 8), at(3, 8), at(4, 8))


@pytest.mark.parametrize(
    ("text", "timezone"),
    [
        ("0 9 * * *", "Europe/Paris"),
        ("0 9 * * *", "UTC"),
        ("@every 1h", "Europe/Berlin"),
        ("0 * * * *", "Europe/Berlin"),
    ],
)
def test_other_schedules_stay(tmp_path: Path, text: str, timezone: str) -> None:
    newer = decreed(tmp_path, Berlin="Europe/London")
    assert moved(text, timezone, None, timezone_database(), newer, NOW, END) is None


def test_single_wall_time_moves(tmp_path: Path) -> None:
    newer = decreed(tmp_path, Berlin="Europe/London")
    found = moved("at 2026-07-02T09:00", "Europe/Berlin", None, timezone_database(), newer, NOW, END)
    assert found is not None
    assert (found.removed, found.added) == ((at(2, 7),), (at(2, 8),))


def test_only_the_changed_stretch_is_compared(tmp_path: Path) -> None:
    newer = decreed(tmp_path, Berlin="Africa/Algiers")  # the same clocks in winter
    winter = datetime(2026, 12, 1, tzinfo=UTC)
    assert moved("0 9 * * *", "Europe/Berlin", None, timezone_database(), newer, winter, winter + timedelta(60)) is None
    found = moved("0 9 * * *", "Europe/Berlin", None, timezone_database(), newer, winter, winter + timedelta(200))
    assert found is not None
    assert found.removed[0] == datetime(2027, 3, 28, 7, tzinfo=UTC)


def test_missing_zone_is_an_error(tmp_path: Path) -> None:
    decreed(tmp_path)
    (tmp_path / "zones").write_text("UTC\n")
    with pytest.raises(ScheduleError):
        moved("0 9 * * *", "Europe/Berlin", None, timezone_database(), TimezoneDatabase(tmp_path), NOW, END)
