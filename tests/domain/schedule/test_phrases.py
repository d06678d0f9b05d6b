"""English (`hip-62`, Schedule Expressions): its own phrases, what users write next to them, and what is refused."""

import logging
from datetime import UTC, datetime
from importlib.resources import files

import pytest
from lark import Lark, logger

from tocsin.domain.schedule import ScheduleError, parse

NO_TIME = "no time of day was given: midnight is meant"


@pytest.mark.parametrize(
    ("text", "cron"),
    [
        ("every 5 minutes", "*/5 * * * *"),
        ("every day at 2am", "0 2 * * *"),
        ("every weekday at 9am", "0 9 * * 1-5"),
        ("every Monday at 9am", "0 9 * * 1"),
        ("every first of the month at midnight", "0 0 1 * *"),
        ("twice daily at 8am and 8pm", "0 8,20 * * *"),
    ],
)
def test_hip_62_s_own_phrases(text: str, cron: str) -> None:
    assert parse(text).expressions == (cron,)
    assert parse(text).warnings == ()


@pytest.mark.parametrize(
    ("text", "crons"),
    [
        # how often
        ("every minute", ["* * * * *"]),
        ("Every Hour", ["0 * * * *"]),
        ("hourly", ["0 * * * *"]),
        ("every second", ["* * * * * *"]),
        ("every 30 seconds", ["*/30 * * * * *"]),
        ("every other hour", ["0 */2 * * *"]),
        ("every other minute", ["*/2 * * * *"]),
        ("every fifteen minutes", ["*/15 * * * *"]),
        ("every 15 mins", ["*/15 * * * *"]),
        ("each hour", ["0 * * * *"]),
        ("once an hour", ["0 * * * *"]),
        ("every half hour", ["*/30 * * * *"]),
        ("every half an hour", ["*/30 * * * *"]),
        ("every quarter of an hour", ["*/15 * * * *"]),
        ("every 60 minutes", ["0 * * * *"]),
        ("every 120 seconds", ["*/2 * * * *"]),
        ("every 24 hours", ["0 0 * * *"]),
        ("every 90 minutes", ["0 */3 * * *", "30 1-22/3 * * *"]),
        # past the hour
        ("every hour at :15", ["15 * * * *"]),
        ("every hour at :15 and :45", ["15,45 * * * *"]),
        ("every hour at minute 15", ["15 * * * *"]),
        ("at minute 15 of every hour", ["15 * * * *"]),
        ("at 15 past every hour", ["15 * * * *"]),
        ("at 10 and 50 minutes past the hour", ["10,50 * * * *"]),
        ("every 2 hours at minute 30", ["30 */2 * * *"]),
        # between times
        ("every 15 minutes between 9am and 5pm on weekdays", ["*/15 9-16 * * 1-5", "0 17 * * 1-5"]),
        ("every hour from 9am to 5pm", ["0 9-17 * * *"]),
        ("every 2 hours between 9am and 5pm", ["0 9-17/2 * * *"]),
        ("every 10 minutes from 9:30 until 10:10", ["30,40,50 9 * * *", "0,10 10 * * *"]),
        ("every hour between 10pm and 6am", ["0 0-6,22,23 * * *"]),
        ("every 30 seconds between 9am and 9:10", ["*/30 0-9 9 * * *", "10 9 * * *"]),
        ("every hour between 9am and 5pm at minute 5", ["5 9-16 * * *"]),
        ("every hour between 10pm and 2am at :30", ["30 0,1,22,23 * * *"]),
        # at times
        ("at noon every day", ["0 12 * * *"]),
        ("every day at noon", ["0 12 * * *"]),
        ("daily at 9:30 pm", ["30 21 * * *"]),
        ("every day at 12am", ["0 0 * * *"]),
        ("every day at 12pm", ["0 12 * * *"]),
        ("every day at 9 a.m.", ["0 9 * * *"]),
        ("every day at 18:00", ["0 18 * * *"]),
        ("every day at 18:00:30", ["30 0 18 * * *"]),
        ("every day at 6am, noon and 6pm", ["0 6,12,18 * * *"]),
        ("three times a day at 6am, noon and 6pm", ["0 6,12,18 * * *"]),
        ("once a day at 9am", ["0 9 * * *"]),
        ("twice daily at 8am and 8:30pm", ["0 8 * * *", "30 20 * * *"]),
        ("3 times a day at 6am, 9am and 8pm", ["0 6,9,20 * * *"]),
        # weekdays
        ("weekdays at 9am", ["0 9 * * 1-5"]),
        ("on weekends at 10:00", ["0 10 * * 0,6"]),
        ("every business day at 9am", ["0 9 * * 1-5"]),
        ("monday to friday at 9am", ["0 9 * * 1-5"]),
        ("mon-fri at 9am", ["0 9 * * 1-5"]),
        ("friday through monday at 9am", ["0 9 * * 0,1,5,6"]),
        ("on mondays, wednesdays and fridays at 9am", ["0 9 * * 1,3,5"]),
        ("every tue and thu at 17:00", ["0 17 * * 2,4"]),
        ("every week on sunday at 3am", ["0 3 * * 0"]),
        ("weekly on monday at 9am", ["0 9 * * 1"]),
        ("twice a week on monday and thursday at 9am", ["0 9 * * 1,4"]),
        ("every day except sunday at 9am", ["0 9 * * 1-6"]),
        ("every day but not on weekends at 9am", ["0 9 * * 1-5"]),
        ("every 5 minutes, on weekends", ["*/5 * * * 0,6"]),
        ("at 9am on mondays", ["0 9 * * 1"]),
        # days of the month
        ("on the 1st and 15th at 9:30", ["30 9 1,15 * *"]),
        ("every month on the 1st at 6am", ["0 6 1 * *"]),
        ("monthly on the 15th at noon", ["0 12 15 * *"]),
        ("the 10th of every month at noon", ["0 12 10 * *"]),
        ("last day of the month at 23:30", ["30 23 L * *"]),
        ("first and last day of the month at noon", ["0 12 1,L * *"]),
        ("last friday of the month at 18:00", ["0 18 * * 5L"]),
        ("every second tuesday of the month at 9pm", ["0 21 * * 2#2"]),
        ("every last friday at 6pm", ["0 18 * * 5L"]),
        ("first and third monday of the month at 8am", ["0 8 * * 1#1,1#3"]),
        ("first weekday of the month at 8am", ["0 8 1W * *"]),
        ("last business day of the month at 5pm", ["0 17 LW * *"]),
        ("on the weekday nearest the 15th at 9am", ["0 9 15W * *"]),
        # months, quarters, years
        ("every other month on the 1st at 9am", ["0 9 1 1,3,5,7,9,11 *"]),
        ("every 3 months on the 1st at 9am", ["0 9 1 1,4,7,10 *"]),
        ("every quarter at 9am", ["0 9 1 1,4,7,10 *"]),
        ("last day of every quarter at 23:30", ["30 23 L 3,6,9,12 *"]),
        ("first monday of the quarter at 9am", ["0 9 * 1,4,7,10 1#1"]),
        ("last day of the year at 23:59", ["59 23 L 12 *"]),
        ("every january at 9am", ["0 9 * 1 *"]),
        ("on the 15th in june and july at noon", ["0 12 15 6,7 *"]),
        ("on mondays from june to august at noon", None),
        ("on mondays in june to august at noon", ["0 12 * 6-8 1"]),
        ("15th of march at noon", ["0 12 15 3 *"]),
        ("every year on march 5th at 9am", ["0 9 5 3 *"]),
        ("on march 5 and june 5 at 9am", ["0 9 5 3,6 *"]),
        ("on march 5 and june 7 at 9am", ["0 9 5 3 *", "0 9 7 6 *"]),
        # several at once
        ("every monday at 9am and every friday at 5pm", ["0 9 * * 1", "0 17 * * 5"]),
        ("every day at 9am, and every hour on weekends", ["0 9 * * *", "0 * * * 0,6"]),
    ],
)
def test_what_users_write_next_to_them(text: str, crons: list[str] | None) -> None:
    if crons is None:
        with pytest.raises(ScheduleError):
            parse(text)
        return
    assert parse(text).expressions == tuple(crons)
    assert NO_TIME not in parse(text).warnings


@pytest.mark.parametrize(
    ("text", "cron"),
    [
        ("every quarter", "0 0 1 1,4,7,10 *"),
        ("every day", "0 0 * * *"),
        ("daily", "0 0 * * *"),
        ("weekly", "0 0 * * 0"),
        ("monthly", "0 0 1 * *"),
        ("yearly", "0 0 1 1 *"),
        ("every monday", "0 0 * * 1"),
        ("on the 1st", "0 0 1 * *"),
    ],
)
def test_missing_time_means_midnight_and_is_noted(text: str, cron: str) -> None:
    schedule = parse(text)
    assert schedule.expressions == (cron,)
    assert schedule.warnings == (NO_TIME,)


@pytest.mark.parametrize(
    ("text", "place", "suggestion"),
    [
        # two meanings
        ("every day at 9", "9", "9am, 9pm, or 09:00"),
        ("every hour between 9 and 5pm", "9", "9am, 9pm, or 09:00"),
        ("every second tuesday at 9am", "second", "second … of the month, or @every 336h"),
        ("every third friday at 9am", "third", "third … of the month, or @every 504h"),
        ("biweekly", "biweekly", "@every 336h, or twice a week on monday and thursday at 9am"),
        ("nightly", "nightly", "every day at 2am"),
        # no rule on the wall clock
        (
            "every 7 minutes",
            None,
            "@every 7m0s, which counts from registration; or every 6 minutes, or every 10 minutes",
        ),
        ("every 5 hours", None, "@every 5h0m0s, which counts from registration; or every 4 hours, or every 6 hours"),
        (
            "every 45 seconds",
            None,
            "@every 45s, which counts from registration; or every 30 seconds, or every 60 seconds",
        ),
        ("every 2 days", None, "@every 48h, which counts from registration"),
        ("every other week", None, "@every 336h, which counts from registration"),
        ("every 5 months", None, "every month"),
        ("every 0 minutes", None, "every 5 minutes"),
        # clauses that do not fit together
        ("twice a day", None, "twice a day at 8am and 8pm"),
        ("twice a day at 9am", None, "twice a day at 8am and 8pm"),
        ("twice a week on monday", None, "twice a week on monday and thursday at 9am"),
        ("twice an hour", None, "every 30 minutes"),
        ("every 5 minutes at 9am", None, "every 15 minutes, or at 9am"),
        ("every 5 minutes at minute 3", None, "every hour at minute 15"),
        ("between 9am and 5pm", None, "every hour between 9am and 5pm"),
        ("every 15 minutes between 9:10 and 17:00", None, "every 15 minutes between 9:00 and 17:00"),
        ("every hour between 9am and 9am", None, "every hour between 9am and 5pm"),
        ("every hour between 10pm and 6am on weekdays", None, "two phrases, one for each side of midnight"),
        ("every hour between 9:30am and 5pm at :15", None, "every hour between 9am and 5pm at minute 15"),
        ("on the 13th on friday at 9am", None, "first monday of the month, or on the 1st of the month"),
        ("every month on monday at 9am", None, "every monday at 9am, on the 1st of the month, or on march 5th"),
        ("every year on the 5th at 9am", None, None),
        (
            "15th of every quarter at 9am",
            None,
            "last day of the quarter, or on the 15th, in january, april, july and october",
        ),
        ("third weekday of the month at 9am", "third", "the weekday nearest the 15th of the month"),
        ("every day except every day at 9am", "day", None),
        ("weekdays except weekdays at 9am", None, "every day except sunday at 9am"),
        ("every monday and every friday at 9am", None, "every monday and friday at 9am"),
        ("at 9am at 5pm", None, "one phrase for each, joined by 'and every …', or a list such as 'at 9am and 5pm'"),
        # what is not there
        ("every day at 25:00", "25:00", None),
        ("every day at 13pm", "13pm", None),
        ("every day at 9:75", "9:75", None),
        ("on the 32nd at 9am", "32nd", None),
        ("sixth monday of the month", "sixth", None),
        ("at 75 past every hour", "75", None),
        ("on february 30th at 9am", None, None),
        # slips
        ("every mondya at 9am", "mondya", "monday"),
        ("evry day at 9am", "evry", "every"),
        ("every 5 minuts", "minuts", "minutes"),
        ("every day at 9am UTC sharp", "UTC", "the zone at the end of the phrase, or in its own field, `timezone`"),
        ("every", "", None),
        ("every day at", "", None),
        ("5 minutes", "5", None),
        ("hello", "hello", None),
    ],
)
def test_ambiguous_phrases_are_refused_with_a_suggestion(text: str, place: str | None, suggestion: str | None) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text)
    error = refused.value
    assert error.text == text or error.problem.startswith("day of month: ")
    if place is not None:
        assert text[error.start : error.start + error.length] == place
    if suggestion is not None:
        assert error.suggestion == suggestion


SUGGESTED = [
    *("every weekday at 9am", "every 15 minutes", "last friday of the month at 18:00"),
    *("every hour between 9am and 5pm",),
    *("every hour at minute 15", "every 15 minutes between 9:00 and 17:00", "twice a day at 8am and 8pm", "at 9am"),
    *("twice a week on monday and thursday at 9am", "first monday of the month", "on the 1st of the month"),
    *("on march 5th",),
    *("every monday and friday at 9am", "every day except sunday at 9am", "the weekday nearest the 15th of the month"),
    *("last day of the quarter", "on the 15th, in january, april, july and october", "every other month"),
    *("@every 336h",),
    *("on the 1st and 15th of the month", "on the 1st, in june", "at 15 past every hour", "every day at 2am"),
    *("every 6 minutes",),
]


@pytest.mark.parametrize("text", SUGGESTED)
def test_what_refusals_suggest_can_be_read(text: str) -> None:
    assert parse(text).next_after(datetime(2026, 1, 1, tzinfo=UTC), anchor=datetime(2026, 1, 1, tzinfo=UTC))


def test_the_grammar_leaves_nothing_to_chance(caplog: pytest.LogCaptureFixture) -> None:
    """The parser generator settles a conflict silently, in favour of one of two readings: there must be none."""
    source = files("tocsin.domain.schedule.phrases").joinpath("phrases.lark").read_text(encoding="utf-8")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        Lark(source, parser="lalr", lexer="contextual", debug=True)
    assert [record.message for record in caplog.records if "conflict" in record.message.lower()] == []
