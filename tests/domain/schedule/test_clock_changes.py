"""Clock changes (`ojs-cron` 5.2; CRON-16, CRON-17, CRON-30), and the policies of a job.

The changes, in each zone's own law:
    New York     2026-03-08 02:00 EST → 03:00 EDT (07:00 UTC);  2026-11-01 02:00 EDT → 01:00 EST (06:00 UTC)
    Lord Howe    2026-10-04 02:00 → 02:30 (15:30 UTC the day before);  2026-04-05 02:00 → 01:30 (15:00 UTC the day before)
    Troll        2026-03-29 01:00 → 03:00 (01:00 UTC);  2026-10-25 03:00 → 01:00 (01:00 UTC)
    Santiago     2026-09-06 00:00 → 01:00 (04:00 UTC);  2026-04-05 00:00 → 23:00 the day before (03:00 UTC)
    Dublin       2026-03-29 01:00 → 02:00 (01:00 UTC);  2026-10-25 02:00 → 01:00 (01:00 UTC); winter is the exception
    Apia         2011-12-30 did not exist: 2011-12-29 24:00 → 2011-12-31 00:00 (10:00 UTC on the 30th)
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tocsin.domain.schedule import (
    DstPolicy,
    Occurrence,
    Schedule,
    ScheduleError,
    clock_changes,
    parse,
    warnings_at,
)

SHIFT = DstPolicy(gap="shift")
BOTH = DstPolicy(fold="both")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text)


def within(schedule: Schedule, after: str, until: str) -> list[Occurrence]:
    return list(schedule.occurrences(utc(after), utc(until), anchor=utc(after)))


def fired(schedule: Schedule, after: str, until: str) -> list[str]:
    """The instants that fire, as times in UTC."""
    return [
        f"{occurrence.at:%H:%M}" for occurrence in within(schedule, after, until) if occurrence.skipped_local is None
    ]


def skipped(schedule: Schedule, after: str, until: str) -> list[str]:
    """The wall times that do not exist."""
    return [
        f"{occurrence.skipped_local:%d %H:%M}"
        for occurrence in within(schedule, after, until)
        if occurrence.skipped_local
    ]


def test_cron_16_skipped_time_does_not_fire_and_is_reported() -> None:
    schedule = parse("30 2 * * *", "America/New_York")
    assert within(schedule, "2026-03-07T00:00", "2026-03-10T00:00") == [
        Occurrence(utc("2026-03-07T07:30")),
        Occurrence(utc("2026-03-08T07:30"), skipped_local=wall("2026-03-08T02:30")),
        Occurrence(utc("2026-03-09T06:30")),
    ]
    assert schedule.next_after(utc("2026-03-07T08:00"), anchor=utc("2026-03-07T08:00")) == utc("2026-03-09T06:30")
    assert schedule.count(utc("2026-03-07T00:00"), utc("2026-03-10T00:00"), anchor=utc("2026-03-07T00:00")) == 2


def test_cron_17_repeated_time_fires_at_its_first_occurrence() -> None:
    schedule = parse("30 1 * * *", "America/New_York")
    assert within(schedule, "2026-10-31T12:00", "2026-11-02T12:00") == [
        Occurrence(utc("2026-11-01T05:30")),
        Occurrence(utc("2026-11-02T06:30")),
    ]


def test_cron_17_literal_reading_silences_the_repeated_hour() -> None:
    schedule = parse("*/15 * * * *", "America/New_York")
    assert fired(schedule, "2026-11-01T05:15", "2026-11-01T07:15") == ["05:30", "05:45", "07:00", "07:15"]


def test_cron_17_next_in_the_repeated_hour_is_later() -> None:
    schedule = parse("30 1 * * *", "America/New_York")
    for minute in range(0, 60, 7):
        after = utc(f"2026-11-01T06:{minute:02}")
        assert schedule.next_after(after, anchor=after) == utc("2026-11-02T06:30")
        assert schedule.latest_until(after, after=utc("2026-10-30T00:00"), anchor=after) == utc("2026-11-01T05:30")


def test_cron_30_any_windows_report_each_skipped_time_once() -> None:
    schedule, start = parse("*/20 * * * *", "America/New_York"), utc("2026-03-08T06:00")
    whole = list(schedule.occurrences(start, start + timedelta(hours=3), anchor=start))
    assert [occurrence.skipped_local for occurrence in whole if occurrence.skipped_local] == [
        wall("2026-03-08T02:00"),
        wall("2026-03-08T02:20"),
        wall("2026-03-08T02:40"),
    ]
    for minutes in (1, 7, 20, 45):
        borders = [start + n * timedelta(minutes=minutes) for n in range(180 // minutes + 1)]
        borders.append(start + timedelta(hours=3))
        parts = [
            occurrence
            for after, until in pairwise(borders)
            for occurrence in schedule.occurrences(after, until, anchor=start)
        ]
        assert parts == whole


def test_firing_precedes_a_skipped_time_of_its_instant() -> None:
    schedule = parse("0 * * * *", "America/New_York")
    assert within(schedule, "2026-03-08T06:30", "2026-03-08T07:30") == [
        Occurrence(utc("2026-03-08T07:00")),
        Occurrence(utc("2026-03-08T07:00"), skipped_local=wall("2026-03-08T02:00")),
    ]


@pytest.mark.parametrize(
    ("text", "timezone", "after", "until", "expected"),
    [
        # half an hour, two hours, at midnight, where winter is the exception, a whole day
        ("*/15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", "2026-10-04T12:00", ["04 02:00", "04 02:15"]),
        ("30 * * * *", "Antarctica/Troll", "2026-03-28T23:00", "2026-03-29T05:00", ["29 01:30", "29 02:30"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", "2026-09-06T12:00", ["06 00:00"]),
        ("30 1 * * *", "Europe/Dublin", "2026-03-28T12:00", "2026-03-29T12:00", ["29 01:30"]),
        ("0 9,21 * * *", "Pacific/Apia", "2011-12-29T00:00", "2012-01-02T00:00", ["30 09:00", "30 21:00"]),
        ("0 0 30 12 *", "Pacific/Apia", "2011-12-01T00:00", "2012-06-01T00:00", ["30 00:00"]),
        ("0 9 * * *", "Asia/Kathmandu", "2026-01-01T00:00", "2027-01-01T00:00", []),
    ],
)
def test_cron_16_gaps_of_every_size(text: str, timezone: str, after: str, until: str, expected: list[str]) -> None:
    assert skipped(parse(text, timezone), after, until) == expected


@pytest.mark.parametrize(
    ("text", "timezone", "after", "until", "expected"),
    [
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", "2026-04-04T18:00", ["14:45"]),
        ("30 1,2 * * *", "Antarctica/Troll", "2026-10-24T20:00", "2026-10-25T06:00", ["23:30", "00:30"]),
        ("30 23 * * *", "America/Santiago", "2026-04-04T12:00", "2026-04-05T12:00", ["02:30"]),
        ("0 0 * * *", "America/Santiago", "2026-04-04T12:00", "2026-04-05T12:00", ["04:00"]),
        ("30 1 * * *", "Europe/Dublin", "2026-10-24T12:00", "2026-10-25T12:00", ["00:30"]),
    ],
)
def test_cron_17_folds_of_every_size(text: str, timezone: str, after: str, until: str, expected: list[str]) -> None:
    assert fired(parse(text, timezone), after, until) == expected


def test_skipped_day_leaves_out_only_that_day() -> None:
    schedule = parse("0 9 * * *", "Pacific/Apia")
    assert [f"{occurrence.at:%d %H:%M}" for occurrence in within(schedule, "2011-12-28T00:00", "2012-01-01T00:00")] == [
        "28 19:00",  # 28 December, 09:00 at -10
        "29 19:00",
        "30 19:00",  # 31 December, 09:00 at +14
        "30 19:00",  # 30 December, which was not
        "31 19:00",
    ]


@pytest.mark.parametrize(
    ("text", "timezone", "after", "until", "expected"),
    [
        # fixed times move by as much as the clocks did
        ("30 2 * * *", "America/New_York", "2026-03-08T00:00", "2026-03-08T12:00", ["07:30"]),
        ("10,20 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", "2026-10-03T18:00", ["15:40", "15:50"]),
        ("0 0 * * *", "America/Santiago", "2026-09-06T00:00", "2026-09-06T12:00", ["04:00"]),
        # two instants that coincide are the same instant
        ("30 2,3 * * *", "America/New_York", "2026-03-08T00:00", "2026-03-08T12:00", ["07:30"]),
        (
            "*/30 * * * *",
            "America/New_York",
            "2026-03-08T06:00",
            "2026-03-08T08:00",
            ["06:30", "07:00", "07:30", "08:00"],
        ),
        ("0 9 * * *", "Pacific/Apia", "2011-12-30T00:00", "2011-12-31T00:00", ["19:00"]),
        # … else both fire, in order
        ("20 3 * * *", "America/New_York", "2026-03-08T00:00", "2026-03-08T12:00", ["07:20"]),
        ("20,40 2,3 * * *", "America/New_York", "2026-03-08T00:00", "2026-03-08T12:00", ["07:20", "07:40"]),
    ],
)
def test_gap_shift_fires_later_by_as_much(
    text: str, timezone: str, after: str, until: str, expected: list[str]
) -> None:
    schedule = parse(text, timezone, dst=SHIFT)
    assert fired(schedule, after, until) == expected
    assert skipped(schedule, after, until) == []
    assert schedule.count(utc(after), utc(until), anchor=utc(after)) == len(expected)
    assert f"{schedule.latest_until(utc(until), after=utc(after), anchor=utc(after)):%H:%M}" == expected[-1]


def test_gap_shift_merges_moved_and_unmoved_times() -> None:
    schedule = parse("0,50 2 * * *", "America/New_York", dst=SHIFT)
    both = parse("every day at 2:50 and every day at 3:20", "America/New_York", dst=SHIFT)
    assert fired(schedule, "2026-03-08T06:00", "2026-03-08T09:00") == ["07:00", "07:50"]
    assert fired(both, "2026-03-08T06:00", "2026-03-08T09:00") == ["07:20", "07:50"]
    at, seen = utc("2026-03-08T06:00"), []
    for _ in range(3):
        instant = schedule.next_after(at, anchor=at)
        assert instant is not None
        seen.append(f"{instant:%d %H:%M}")
        at = instant
    assert seen == ["08 07:00", "08 07:50", "09 06:00"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # what steps through the hours keeps its pace …
        ("*/30 * * * *", ["05:30", "06:00", "06:30", "07:00"]),
        ("30 * * * *", ["05:30", "06:30"]),
        ("30 0-9 * * *", ["05:30", "06:30"]),
        ("0/30 1 * * *", ["05:30", "06:00", "06:30"]),
        # … and what is fixed does not run twice
        ("30 1 * * *", ["05:30"]),
        ("0,30 1 * * *", ["05:30"]),
        ("30 1,2 * * *", ["05:30"]),
    ],
)
def test_fold_both_repeats_steps_but_not_fixed_times(text: str, expected: list[str]) -> None:
    schedule, after, until = parse(text, "America/New_York", dst=BOTH), "2026-11-01T05:00", "2026-11-01T07:00"
    assert fired(schedule, after, until) == expected
    assert schedule.count(utc(after), utc(until), anchor=utc(after)) == len(expected)
    assert f"{schedule.latest_until(utc(until), after=utc(after), anchor=utc(after)):%H:%M}" == expected[-1]


def test_fold_both_covers_all_minutes_of_25_hours() -> None:
    day = utc("2026-11-01T03:59"), utc("2026-11-02T04:59")
    assert parse("* * * * *", "America/New_York", dst=BOTH).count(*day, anchor=day[0]) == 25 * 60
    assert parse("* * * * *", "America/New_York").count(*day, anchor=day[0]) == 24 * 60


def test_fold_both_finds_a_rare_time_again() -> None:
    schedule = parse("*/30 1 1 11 *", "America/New_York", dst=BOTH)
    after = utc("2026-11-01T05:45")
    assert schedule.next_after(after, anchor=after) == utc("2026-11-01T06:00")
    assert schedule.latest_until(utc("2026-11-01T06:15"), after=after, anchor=after) == utc("2026-11-01T06:00")
    once = parse("30 1 1 11 *", "America/New_York")
    assert once.latest_until(utc("2026-11-01T06:15"), after=utc("2026-01-01T00:00"), anchor=after) == utc(
        "2026-11-01T05:30"
    )


@pytest.mark.parametrize("wish", [{"gap": "later"}, {"fold": "twice"}, {"gap": None}])
def test_there_are_no_other_wishes(wish: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError) as refused:
        DstPolicy(**wish)
    assert refused.value.code == "invalid-dst-policy"
    assert f"dst.{next(iter(wish))}" in refused.value.problem


def test_clock_changes_are_listed_with_their_effect() -> None:
    start, end = utc("2026-01-01T00:00"), utc("2027-01-01T00:00")
    gap, fold = clock_changes(parse("*/30 1-2 * * *", "America/New_York"), start, end)
    assert (gap.at, gap.kind, gap.effect) == (utc("2026-03-08T07:00"), "gap", "skipped")
    assert (gap.wall_before, gap.wall_after) == (wall("2026-03-08T02:00"), wall("2026-03-08T03:00"))
    assert gap.times == (wall("2026-03-08T02:00"), wall("2026-03-08T02:30"))
    assert (fold.at, fold.kind, fold.effect) == (utc("2026-11-01T06:00"), "fold", "once")
    assert fold.times == (wall("2026-11-01T01:00"), wall("2026-11-01T01:30"))
    wishes = parse("*/30 1-2 * * *", "America/New_York", dst=DstPolicy("shift", "both"))
    assert [change.effect for change in clock_changes(wishes, start, end)] == ["shifted", "twice"]


@pytest.mark.parametrize("text", ["0 9 * * *", "@every 5m", "at 2026-03-08T09:00"])
def test_unaffected_schedule_lists_no_clock_changes(text: str) -> None:
    schedule = parse(text, "America/New_York")
    assert list(clock_changes(schedule, utc("2026-01-01T00:00"), utc("2027-01-01T00:00"))) == []
    assert warnings_at(schedule, utc("2026-01-01T00:00")) == ()


def test_registration_warns_of_a_silent_hour() -> None:
    (warning,) = warnings_at(parse("*/15 * * * *", "America/New_York"), utc("2026-06-01T00:00"))
    assert warning == (
        "on 2026-11-01 at 06:00 UTC the clocks of America/New_York go from 02:00 to 01:00: 01:00, 01:15, 01:30 and 01:45 come "
        "twice and will fire the first time only, so the repeated stretch is silent (see dst.fold)"
    )


def test_registration_warns_of_a_lost_fixed_time() -> None:
    (warning,) = warnings_at(parse("30 2 * * *", "America/New_York"), utc("2026-01-01T00:00"))
    assert warning == (
        "on 2026-03-08 at 07:00 UTC the clocks of America/New_York go from 02:00 to 03:00: 02:30 does not exist and will not "
        "fire (see dst.gap)"
    )


def test_registration_accepts_a_chosen_policy_without_warning() -> None:
    now = utc("2026-01-01T00:00")
    assert warnings_at(parse("*/15 * * * *", "America/New_York", dst=BOTH), now) == ()
    assert warnings_at(parse("30 2 * * *", "America/New_York", dst=SHIFT), now) == ()
