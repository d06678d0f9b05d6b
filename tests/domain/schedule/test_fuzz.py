"""No text of any kind gives anything but a schedule or the calendar's own error, and every error says something."""

from contextlib import suppress
from datetime import UTC, datetime

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain.schedule import ScheduleError, explain, next_fire_times, parse

NOW = datetime(2026, 1, 1, tzinfo=UTC)

bytes_of_any_kind = st.binary(max_size=200).map(lambda raw: raw.decode("latin-1"))
cronlike = st.text("0123456789*/,-LW#? \tMONJAFE@", max_size=60)
words = st.lists(
    st.sampled_from(
        [
            *("every", "each", "day", "days", "hour", "minute", "minutes", "second", "week", "month"),
            *("quarter", "year", "other"),
            *("5", "15", "90", "0", "1000000000000", "first", "last", "2nd", "31st", "of", "the", "on", "at"),
            *("in", "and", ","),
            *("between", "from", "to", "until", "monday", "mon-fri", "weekdays", "weekend", "june", "jan-mar"),
            *("9am", "25:00"),
            *("noon", "midnight", ":15", "past", "except", "once", "twice", "times", "daily", "hourly"),
            *("nearest", "weekday", "@"),
            *("half hour", "quarter hour", "13pm", "business day", "a", "zero", "-", "9", "99", "99:99"),
            *("monthly", "quarterly"),
        ]
    ),
    max_size=9,
).map(" ".join)
texts = st.one_of(st.text(max_size=200), bytes_of_any_kind, cronlike, words)


@given(texts)
@settings(max_examples=examples(600), deadline=None)
@example("@every 9" + "9" * 900 + "h")
@example("9" * 900 + " * * * *")
@example("every " + "9" * 900 + " minutes")
@example("every day at " + ", ".join(["9am"] * 100))
@example("at 2026-01-01T00:00" + "0" * 900)
@example("at 0001-01-01T00:00")
@example("at 9999-12-31T23:59")
@example("\ud800")
@example("e\u0307very İ day")
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    refused: ScheduleError | None = None
    try:
        schedule = parse(text, "Pacific/Apia")
    except ScheduleError as error:
        refused = error
    else:
        assert schedule.text == text
        assert len(next_fire_times(text, "Pacific/Apia", NOW, 3)) <= 3
    if refused is not None:
        assert refused.problem
        assert "\n" not in refused.problem


@given(texts)
@settings(max_examples=examples(200), deadline=None)
def test_any_text_is_a_zone_or_refused(name: str) -> None:
    with suppress(ScheduleError):
        parse("* * * * *", name)


@given(st.one_of(cronlike, words))
@settings(max_examples=examples(200), deadline=None)
def test_every_accepted_text_can_be_explained(text: str) -> None:
    with suppress(ScheduleError):
        explanation = explain(text, "America/New_York", NOW)
        assert explanation.meaning
        assert explanation.expressions
