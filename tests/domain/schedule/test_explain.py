"""The explanation of a schedule before its use."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.cron import next_fire_times
from tocsin.domain.schedule import DstPolicy, Schedule, ScheduleError, explain, parse, timezones, warnings_at
from tocsin.domain.schedule.explain import disagreements, known_to_differ

WINTER = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("*/15 * * * *", "every 15 minutes"),
        ("* * * * *", "every minute"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("@hourly", "every hour"),
        ("15 * * * *", "every hour, at minute 15"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 9-17 * * *", "every hour from 9 to 17"),
        ("*/20 9-16 * * 1-5", "every 20 minutes, in the hours 09 to 16 on Monday to Friday"),
        ("5,20 9 * * *", "at 09:05 and 09:20 every day"),
        ("1-59/2 3 * * *", "every 2 minutes from 1 to 59, in the hour 03"),
        ("7,8,30 1-9 * * *", "at minutes 7, 8 and 30, in the hours 01 to 09"),
        ("30 0 9 * * *", "at 09:00:30 every day"),
        ("@daily", "at 00:00 every day"),
        ("0 9 * * 1", "at 09:00 on every Monday"),
        ("0 9 * * 0,6", "at 09:00 on Saturday and Sunday"),
        ("0 9 * * FRI-MON", "at 09:00 on Friday to Monday"),
        ("0 9 * * 5#3,1L", "at 09:00 on the 3rd Friday of the month and the last Monday of the month"),
        ("0 9 1,15 * *", "at 09:00 on the 1st and the 15th of every month"),
        ("0 9 L * *", "at 09:00 on the last day of every month"),
        ("0 9 LW * *", "at 09:00 on the last weekday (Monday to Friday) of every month"),
        ("0 9 22W 6 *", "at 09:00 on the weekday (Monday to Friday) nearest the 22nd in June"),
        ("0 0 13 * 5", "at 00:00 on the 13th or on every Friday"),
        ("0 0 * 1-3,7 *", "at 00:00 every day in January to March and July"),
        ("twice daily at 8am and 8:30pm", "at 08:00 every day; and at 20:30 every day"),
    ],
)
def test_the_meaning_is_said_in_english(text: str, meaning: str) -> None:
    assert explain(text, "Europe/Berlin", WINTER).meaning == f"{meaning}, on the clocks of Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("@every 1h", "every hour, counted from the registration or the last trigger"),
        ("@every 90m", "every 90 minutes, counted from the registration or the last trigger"),
        ("@every 250ms", "every 250ms, counted from the registration or the last trigger"),
        ("at 2027-01-01T00:00", "once, at 2026-12-31 23:00:00 UTC"),
    ],
)
def test_interval_is_explained_in_english(text: str, meaning: str) -> None:
    assert explain(text, "Europe/Berlin", WINTER).meaning == meaning


def test_explanation_has_every_field() -> None:
    explanation = explain("30 2 * * *", "America/New_York", datetime(2026, 3, 7, tzinfo=UTC))
    assert explanation.expressions == ("30 2 * * *",)
    assert [instant.utc.isoformat() for instant in explanation.next[:2]] == [
        "2026-03-07T07:30:00+00:00",
        "2026-03-09T06:30:00+00:00",
    ]
    assert [instant.local.isoformat() for instant in explanation.next[:2]] == [
        "2026-03-07T02:30:00-05:00",
        "2026-03-09T02:30:00-04:00",
    ]
    assert len(explanation.next) == 5
    assert [change.partition(":")[0] for change in explanation.clock_changes] == [
        "on 2026-03-08 at 07",
        "on 2027-03-14 at 07",
    ]
    assert explanation.warnings[0].endswith("02:30 does not exist and will not fire (see dst.gap)")
    assert explanation.timezone_database == timezones.timezone_database().version


def test_an_explanation_follows_the_job_s_wishes() -> None:
    wishes = DstPolicy(gap="shift", fold="both")
    explanation = explain("*/30 1-2 * * *", "America/New_York", WINTER, dst=wishes, n=2)
    assert len(explanation.next) == 2
    assert [change.rpartition(": ")[2] for change in explanation.clock_changes[:2]] == [
        "02:00 and 02:30 do not exist and will fire later by as much",
        "01:00 and 01:30 come twice and will fire both times",
    ]
    assert explanation.warnings == ()


def test_skipped_day_is_named_with_its_date() -> None:
    (change,) = explain("0 9 * * *", "Pacific/Apia", datetime(2011, 12, 1, tzinfo=UTC)).clock_changes
    assert "go from 2011-12-30 00:00 to 2011-12-31 00:00: 09:00 does not exist" in change


def test_a_long_list_of_times_is_cut() -> None:
    (change, *_) = explain("* * * * *", "America/New_York", WINTER).clock_changes
    assert change.endswith("02:00, 02:01, 02:02, 02:03 and 56 more do not exist and will not fire")


def test_next_fire_times_are_utc_and_limited() -> None:
    assert next_fire_times("0 9 * * *", "Asia/Tokyo", WINTER, 2) == [
        datetime(2026, 1, 2, tzinfo=UTC),
        datetime(2026, 1, 3, tzinfo=UTC),
    ]
    assert next_fire_times("@every 10m", "UTC", WINTER, 1) == [WINTER + timedelta(minutes=10)]
    assert next_fire_times("at 2020-01-01T00:00", "UTC", WINTER, 3) == []
    assert next_fire_times("* * * * *", "UTC", WINTER, 0) == []


def test_a_moment_that_says_no_offset_is_refused() -> None:
    with pytest.raises(ScheduleError) as refused:
        next_fire_times("* * * * *", "UTC", WINTER.replace(tzinfo=None), 1)
    assert refused.value.code == "invalid-instant"


@pytest.mark.parametrize(
    "text",
    [
        *("*/15 * * * *", "0 9 * * 1-5", "30 2 * * *", "*/7 * * * * *", "0 0 29 2 *", "0 0 L 2 *"),
        *("0 0 13 * 5", "0 0 * * 5#3"),
        *("twice daily at 8am and 8:30pm", "@daily", "@every 5m", "at 2027-01-01T00:00", "0 0 31W * *", "5-5 * * * *"),
        *("0 0 * * 5L", "0 0 * * FRI-MON/2", "0 0 */1 * 1"),
    ],
)
@pytest.mark.parametrize("timezone", ["UTC", "America/New_York"])
def test_croniter_agrees_or_the_difference_is_known(text: str, timezone: str) -> None:
    for after in (WINTER, datetime(2026, 3, 8, 6, tzinfo=UTC), datetime(2026, 11, 1, 5, 20, tzinfo=UTC)):
        assert disagreements(parse(text, timezone), after) == ()


def test_a_difference_is_reported_with_both_answers() -> None:
    right, wrong = parse("0 9 * * *"), parse("0 10 * * *")
    mistaken = Schedule(right.text, "UTC", expressions=right.expressions, rule=wrong.rule)
    (warning,) = warnings_at(mistaken, WINTER)
    assert warning.startswith("croniter reads '0 9 * * *' otherwise: 2026-01-02T09:00:00Z, ")
    assert "; here it is 2026-01-01T12" not in warning
    assert "; here it is 2026-01-02T10:00:00Z, " in warning


@pytest.mark.parametrize(
    "expression",
    ["5-5 * * * *", "0 0 15W * *", "0 0 * * 5-1/2", "0 0 13 * 5#3", "0 0 1 * 1-7", "0 0 */1 * 1"],
)
def test_its_known_habits_are_known(expression: str) -> None:
    assert known_to_differ(expression)
