"""Aliases, intervals (`ojs-cron` 4; CRON-12, S02) and single instants."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.schedule import DstPolicy, ScheduleError, parse

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("alias", "cron"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        (" @Daily ", "0 0 * * *"),
    ],
)
def test_cron_12_aliases(alias: str, cron: str) -> None:
    assert parse(alias).expressions == (cron,)


@pytest.mark.parametrize(
    ("text", "interval", "written"),
    [
        ("@every 30m", timedelta(minutes=30), "@every 30m0s"),
        ("@every 2h", timedelta(hours=2), "@every 2h0m0s"),
        ("@every 1h30m", timedelta(minutes=90), "@every 1h30m0s"),
        ("@every 45s", timedelta(seconds=45), "@every 45s"),
        ("@every 500ms", timedelta(milliseconds=500), "@every 500ms"),
        ("@every 2h45m30s", timedelta(hours=2, minutes=45, seconds=30), "@every 2h45m30s"),
        ("@every 1.5h", timedelta(minutes=90), "@every 1h30m0s"),
        ("@every 1500ms", timedelta(milliseconds=1500), "@every 1.5s"),
        ("@EVERY  48h ", timedelta(days=2), "@every 48h0m0s"),
    ],
)
def test_s02_durations_are_go_s(text: str, interval: timedelta, written: str) -> None:
    schedule = parse(text)
    assert schedule.interval == interval
    assert schedule.expressions == (written,)


@pytest.mark.parametrize(
    "text",
    [
        *("@every", "@every ", "@every 0s", "@every 0h0m", "@every -5m", "@every 5", "@every m", "@every 5 m"),
        *("@every 5m x",),
        *("@every 1d", "@every 1us", "@every 0.1ms", "@every 1e9h", "@every 99999999h", "@every 5M"),
        *("@every every 5m", "@every5m"),
    ],
)
def test_s02_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text)
    assert refused.value.text == text


def test_s02_interval_counts_from_its_anchor() -> None:
    schedule, anchor = parse("@every 30m", "America/New_York"), NOON + timedelta(minutes=7)
    assert schedule.next_after(anchor, anchor=anchor) == NOON + timedelta(minutes=37)
    assert schedule.next_after(NOON + timedelta(minutes=37), anchor=anchor) == NOON + timedelta(minutes=67)
    assert schedule.next_after(NOON - timedelta(days=1), anchor=anchor) == NOON + timedelta(minutes=37)
    assert schedule.latest_until(anchor, after=NOON, anchor=anchor) is None
    assert schedule.latest_until(NOON + timedelta(hours=2), after=NOON, anchor=anchor) == NOON + timedelta(minutes=97)
    assert schedule.count(NOON, NOON + timedelta(hours=2), anchor=anchor) == 3
    found = schedule.occurrences(NOON, NOON + timedelta(hours=2), anchor=anchor)
    assert [occurrence.at.minute for occurrence in found] == [37, 7, 37]


def test_s02_interval_ignores_clock_changes() -> None:
    schedule, start = parse("@every 1h", "America/New_York"), datetime(2026, 3, 8, 5, tzinfo=UTC)
    found = [occurrence.at for occurrence in schedule.occurrences(start, start + timedelta(hours=5), anchor=start)]
    assert found == [start + timedelta(hours=n) for n in range(1, 6)]


def test_fractional_second_is_accepted_with_a_warning() -> None:
    schedule = parse("@every 500ms")
    assert schedule.next_after(NOON, anchor=NOON) == NOON + timedelta(milliseconds=500)
    assert len(schedule.warnings) == 1


def test_an_interval_ends_with_the_calendar() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    assert parse("@every 1h").next_after(end, anchor=end) is None


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("at 2027-03-01T09:00:00Z", datetime(2027, 3, 1, 9, tzinfo=UTC)),
        ("at 2027-03-01T09:00:00+02:00", datetime(2027, 3, 1, 7, tzinfo=UTC)),
        ("at 2027-03-01T09:00", datetime(2027, 3, 1, 14, tzinfo=UTC)),
        ("At 2027-03-01 09:00:30", datetime(2027, 3, 1, 14, 0, 30, tzinfo=UTC)),
        ("@at 2027-07-01T09:00", datetime(2027, 7, 1, 13, tzinfo=UTC)),
        ("2027-07-01T09:00", datetime(2027, 7, 1, 13, tzinfo=UTC)),
        # twice on that day: the first time counts
        ("at 2026-11-01T01:30", datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),
    ],
)
def test_single_instant_uses_the_zone_by_default(text: str, instant: datetime) -> None:
    schedule = parse(text, "America/New_York")
    assert schedule.next_after(NOON, anchor=NOON) == instant
    assert schedule.next_after(instant, anchor=NOON) is None
    assert schedule.latest_until(instant, after=NOON, anchor=NOON) == instant
    assert schedule.latest_until(instant, after=instant, anchor=NOON) is None
    assert schedule.count(NOON, instant, anchor=NOON) == 1
    assert [found.at for found in schedule.occurrences(NOON, instant, anchor=NOON)] == [instant]
    assert list(schedule.occurrences(instant, instant + timedelta(days=1), anchor=NOON)) == []


@pytest.mark.parametrize(
    "text",
    [
        *("at 2027-13-01T09:00", "at 2027-02-30T09:00", "at 2027-03-01", "at 2027-03-01T25:00"),
        *("at 2027-03-01T09:00 sharp",),
        *("at 0001-01-01T00:00+14:00", "at 9999-12-31T23:59:59-12:00"),
    ],
)
def test_single_instants_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text)
    assert refused.value.code == "invalid-instant"


def test_skipped_single_instant_is_refused_unless_shifted() -> None:
    with pytest.raises(ScheduleError) as refused:
        parse("at 2026-03-08T02:30", "America/New_York")
    assert refused.value.code == "invalid-instant"
    assert "America/New_York" in refused.value.problem
    shifted = parse("at 2026-03-08T02:30", "America/New_York", dst=DstPolicy(gap="shift"))
    assert shifted.expressions == ("@at 2026-03-08T07:30:00Z",)
