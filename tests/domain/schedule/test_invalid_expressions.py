"""Refused expressions (`ojs-cron` 3.5, CRON-11): the field, the value, the allowed values, and the position."""

import pytest

from tocsin.domain.schedule import ScheduleError, parse


@pytest.mark.parametrize(
    "text",
    [
        *("60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *", "* * * * 8"),
        *("60 * * * * *",),
        *("*/0 * * * *", "*/00 * * * *", "1-5/0 * * * *", "*/ * * * *", "*/x * * * *", "*/-1 * * * *", "*/61 * * * *"),
        *("*/5/2 * * * *", "0 */25 * * *", "1- * * * *", "-5 * * * *", "1-2-3 * * * *", "30-10 * * * *"),
        *("0 22-6 * * *",),
        *(", * * * *", "1,,2 * * * *", "1, * * * *", ",1 * * * *", "1.5 * * * *", "+1 * * * *", "٣ * * * *"),
        *("1² * * * *",),
        *("", " ", "\n", "*", "* * * *", "* * * * * * *", "0 0 12 * * MON 2026", "JAN * * * *", "* MON * * *"),
        *("* * MON * *", "* * * MON *", "* * * * JAN", "* * * FOO *", "* * * JANUARY *", "* * * * MOND", "* * ? * *"),
        *("0 0 * * ?", "R * * * *", "H * * * *", "L * * * *", "* L * * *", "* * * L *", "* * * * L", "5W * * * *"),
        *("* * W * *", "* * 0W * *", "* * 32W * *", "* * 1-5W * *", "* * WL * *", "* * L-3 * *", "* * L3 * *"),
        *("* * LL * *",),
        *("* * 5L * *", "* * * * LW", "* * * * 5W", "* * * * 5#", "* * * * 5#0", "* * * * 5#6", "* * * * #3"),
        *("* * * * 8#1",),
        *("* * * * 5#1#2", "* * 5#3 * *", "* * * * 5L#1", "* * * * FOOL", "* * * * 1-5L", "@", "@dayly"),
        *("@reboot", "@daily x"),
    ],
)
def test_cron_11_malformed_and_out_of_range_is_refused_again(text: str) -> None:
    with pytest.raises(ScheduleError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 FEB,APR *", "0 0 30W 2 *", "0 0 30-31 2 *"]
)
def test_what_could_never_fire_is_an_error(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert caught.value.code == "never-fires"


@pytest.mark.parametrize(
    ("text", "code", "field", "value", "allowed", "suggestion"),
    [
        ("0 61 * * *", "invalid-field", "hour", "61", "0-23", ""),
        ("0 9 * * MON-FRY", "invalid-field", "day of week", "FRY", "SUN-SAT", ""),
        ("0 9 * january *", "invalid-field", "month", "january", "JAN-DEC", "JAN "),
        ("*/90 * * * *", "invalid-field", "minute", "90", "60", "@every 90m"),
        ("0 22-6 * * *", "invalid-field", "hour", "22-6", "0-23", "22-23,0-6"),
        ("1,2,60-61,5 * * * *", "invalid-field", "minute", "60", "0-59", ""),
        ("1,,2 * * * *", "invalid-field", "minute", ",", "0-59", ""),
        ("0 0 30 2 *", "never-fires", "day of month", "30", "", ""),
        ("0 0 * * ?", "invalid-field", "day of week", "?", "SUN-SAT", "*"),
    ],
)
def test_error_names_field_value_allowed_values_and_position(
    text: str, code: str, field: str, value: str, allowed: str, suggestion: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    error = caught.value
    name, _, problem = error.problem.partition(":")
    assert (error.code, name, error.text) == (code, field, text)
    assert error.text[error.start : error.start + error.length] == value
    assert allowed in problem
    assert error.suggestion.startswith(suggestion)
    assert bool(error.suggestion) == bool(suggestion)
    lines = str(error).splitlines()
    assert lines[1:3] == [f"  {text}", "  " + " " * error.start + "^" * error.length]
    assert [line.removeprefix("try: ") for line in lines[3:]] == ([error.suggestion] if suggestion else [])


def test_a_refusal_can_be_taken_apart() -> None:
    with pytest.raises(ScheduleError) as refused:
        parse("0 0 * * 5#9")
    error = refused.value
    assert isinstance(error, ValueError)
    assert error.text[error.start : error.start + error.length] == "9"
    assert (error.code, error.problem.partition(":")[0]) == ("invalid-field", "day of week")
    assert error.suggestion == "5#3, 5L"


def test_caret_marks_its_position_in_unusual_texts() -> None:
    with pytest.raises(ScheduleError) as refused:
        parse("0\t9 * * FOO")
    assert str(refused.value).splitlines()[1:3] == ["  0 9 * * FOO", "          ^^^"]
    with pytest.raises(ScheduleError) as refused:
        parse("0," * 200 + "77 * * * *")
    _, line, caret = str(refused.value).splitlines()
    assert line[caret.index("^") :].startswith("77 *")
    assert len(line) < 120


def test_overlong_texts_are_refused() -> None:
    with pytest.raises(ScheduleError) as caught:
        parse("0," * 100_000 + "0 * * * *")
    assert caught.value.code == "invalid-expression"
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "0 0 31 * *",
            "day 31 does not exist in February, April, June, September and November; nothing fires for it there",
        ),
        ("0 0 30 * *", "day 30 does not exist in February; nothing fires for it there"),
        ("0 0 29 2 *", "day 29 exists in February only in leap years; nothing fires for it in the others"),
        ("0 0 31W 1,2 *", "day 31 does not exist in February; nothing fires for it there"),
        ("0 0 * * 5#5", "not every month has a fifth such weekday; nothing fires in those that have not"),
        ("0 0 13 * 5", "both day fields are restricted: a day matches if either field matches, not only if both do"),
    ],
)
def test_day_of_some_months_is_only_a_warning(text: str, warning: str) -> None:
    assert parse(text).warnings == (warning,)


@pytest.mark.parametrize("text", ["0 0 31 1 *", "0 0 28 * *", "0 0 L * *", "0 0 * * 5#4", "0 0 */2 * *", "@monthly"])
def test_nothing_is_warned_of_where_there_is_nothing(text: str) -> None:
    assert parse(text).warnings == ()
