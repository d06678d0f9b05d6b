"""Conversion of the parse tree of a phrase into its clauses."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final, cast

from lark import Lark, Token, Transformer, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from ..english import MONTHS, WEEKDAYS
from ..errors import ScheduleCode, ScheduleError, placed
from . import words
from .clauses import (
    Clause,
    Dates,
    Exclusion,
    Interval,
    Marks,
    MonthDays,
    Months,
    Pace,
    Period,
    Times,
    Unit,
    Weekdays,
    Window,
)

_HALF_HOUR: Final = 1_800
_QUARTER_HOUR: Final = 900
_HOUR: Final = 3_600


_EXAMPLE: Final = (
    "every weekday at 9am, every 15 minutes, last friday of the month at 18:00, or cron fields such as 0 9 * * 1-5"
)
_VOCABULARY: Final = (
    *("every", "each", "other", "once", "twice", "times", "first", "last", "third", "between", "from", "until"),
    *("second", "seconds", "minute", "minutes", "hour", "hours", "day", "days", "week", "month", "quarter", "year"),
    *("hourly", "daily", "weekly", "monthly", "quarterly", "yearly", "weekday", "weekdays", "weekends"),
    *("noon", "midnight", "except"),
    *(name.lower() for name in (*WEEKDAYS, *MONTHS[1:])),
)
_INSTEAD: Final = MappingProxyType(
    {
        "biweekly": "@every 336h, or twice a week on monday and thursday at 9am",
        "fortnightly": "@every 336h",
        "bimonthly": "every other month, or on the 1st and 15th of the month",
        "nightly": "every day at 2am",
        "morning": "every day at 9am",
        "evening": "every day at 6pm",
        "utc": "the zone at the end of the phrase, or in its own field, `timezone`",
        "gmt": "the zone at the end of the phrase, or in its own field, `timezone`",
    }
)


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    source = files(__package__).joinpath("phrases.lark").read_text(encoding="utf-8")
    return Lark(source, parser="lalr", lexer="contextual")


def _unreadable(text: str, error: UnexpectedInput) -> ScheduleError:
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        start, word = error.token.start_pos or 0, str(error.token)
    elif isinstance(error, UnexpectedCharacters):
        start = error.pos_in_stream
        word = text[start:].split(maxsplit=1)[0]
    else:
        start, word = len(text.rstrip()), ""
    if not word:
        return ScheduleError(
            "phrase: it ends too early; something is missing here",
            text=text,
            start=start,
            suggestion=_EXAMPLE,
            code="invalid-phrase",
        )
    close = get_close_matches(word.lower().strip(",.;"), _VOCABULARY, n=1)
    known = close and close[0] == word.lower()
    suggestion = _INSTEAD.get(word.lower().strip(",.;")) or (close[0] if close and not known else _EXAMPLE)
    return ScheduleError(
        f"phrase: cannot make sense of {word!r} here",
        text=text,
        start=start,
        length=len(word),
        suggestion=suggestion,
        code="invalid-phrase",
    )


def read_clauses(text: str) -> list[list[Clause]]:
    """Return the phrases of a text, each as its clauses; "and every" begins another phrase.

    Raises:
        ScheduleError: placed in `text`.
    """
    try:
        return _Clauses().transform(_grammar().parse(text))
    except UnexpectedInput as error:
        raise _unreadable(text, error) from None
    except VisitError as error:
        if isinstance(error.orig_exc, ScheduleError):
            raise error.orig_exc.within(text, 0) from None
        raise


def _of_type(children: Iterable[object], *types: str) -> list[Token]:
    return [child for child in children if isinstance(child, Token) and child.type in types]


class _Clauses(Transformer[Token, list[list[Clause]]]):
    """A transformer with one method for each rule of the grammar."""

    def start(self, children: list[object]) -> list[list[Clause]]:
        return [cast("list[Clause]", child) for child in children if not isinstance(child, Token)]

    def phrase(self, children: list[Clause]) -> list[Clause]:
        return children

    def amount(self, children: list[Token]) -> int:
        return 2 if children[0].type == "OTHER" else words.number(children[0])

    def clock_unit(self, children: list[Token]) -> int:
        fixed = {"HALF_HOUR": _HALF_HOUR, "QUARTER_HOUR": _QUARTER_HOUR}
        return fixed.get(children[0].type) or words.SECONDS[words.unit(children[0])]

    def every_units(self, children: list[object]) -> Interval:
        numbers = [child for child in children if isinstance(child, int)]
        return Interval(numbers[0] * numbers[1] if len(numbers) > 1 else numbers[0])

    def hourly(self, _: list[Token]) -> Interval:
        return Interval(_HOUR)

    def times_word(self, children: list[Token]) -> int:
        fixed = {"ONCE": 1, "TWICE": 2}
        return fixed.get(children[0].type) or words.number(children[0].split(maxsplit=1)[0])

    def period_unit(self, children: list[Token]) -> Unit:
        return words.unit(children[0])

    def pace(self, children: list[object]) -> Pace:
        times, per = cast("int", children[0]), children[-1]
        if isinstance(per, Token):
            return Pace(times, words.adverb(per))
        if isinstance(per, int):
            return Pace(times, words.unit_of(per))
        return Pace(times, cast("Unit", per))

    def period(self, children: list[object]) -> Period:
        if isinstance(children[-1], Token):
            return Period(words.adverb(children[-1]))
        counts = [child for child in children if isinstance(child, int)]
        return Period(cast("Unit", children[-1]), *counts)

    def day_list(self, children: list[Token]) -> frozenset[int]:
        days = frozenset[int]()
        for token in children:
            if token.type in {"WEEKDAY", "WEEKDAYS"}:
                days |= words.WEEKDAYS
            elif token.type in {"WEEKEND", "WEEKENDS"}:
                days |= words.WEEKEND
            elif token.type == "DAY_RANGE":
                days |= words.weekday_span(token)
            elif token.type != "SEP":
                days |= {words.weekday(token)}
        return days

    bare_days = day_list

    def weekdays(self, children: list[object]) -> Weekdays:
        return Weekdays(cast("frozenset[int]", children[-1]))

    def exception(self, children: list[object]) -> Exclusion:
        return Exclusion(cast("frozenset[int]", children[-1]))

    def lead(self, children: list[Token]) -> bool:
        return bool(_of_type(children, "EVERY"))

    def ordinals(self, children: list[Token]) -> list[Token]:
        return _of_type(children, "ORDINAL", "LAST")

    def target_days(self, children: list[Token]) -> list[int]:
        return [words.weekday(token) for token in _of_type(children, "DAY_NAME")]

    def month_list(self, children: list[Token]) -> Months:
        months = frozenset[int]()
        for token in children:
            if token.type == "MONTH_RANGE":
                months |= words.month_span(token)
            elif token.type == "MONTH_NAME":
                months |= {words.month(token)}
        return Months(months)

    def month_ref(self, children: list[object]) -> MonthDays:
        if isinstance(children[-1], Months):
            return MonthDays(of="month", months=children[-1].months)
        return MonthDays(of=words.unit(cast("Token", children[-1])))

    def ordinal_days(self, children: list[object]) -> MonthDays:
        each = any(child is True for child in children)
        of = next((child for child in children if isinstance(child, MonthDays)), MonthDays())
        ordinals = next(cast("list[Token]", child) for child in children if isinstance(child, list))
        days = next((child for child in children[1:] if isinstance(child, list) and child is not ordinals), None)
        if days is not None:
            return MonthDays((), _nth_weekdays(ordinals, days, open_ended=each and of.of is None), of.of, of.months)
        if _of_type(children, "WEEKDAY"):
            return MonthDays(tuple(_working_day(token) for token in ordinals), (), of.of, of.months)
        return MonthDays(tuple(_day(token) for token in ordinals), (), of.of, of.months)

    def nearest_days(self, children: list[object]) -> MonthDays:
        of = next((child for child in children if isinstance(child, MonthDays)), MonthDays())
        ordinals = next(cast("list[Token]", child) for child in children if isinstance(child, list))
        return MonthDays(tuple(_day(token) + "W" for token in ordinals), (), of.of, of.months)

    def date(self, children: list[Token]) -> tuple[int, int]:
        name, day = children
        numbered = words.number(day) if day.type == "NUMBER" else words.ordinal(day)
        return words.month(name), numbered

    def dates(self, children: list[object]) -> Dates:
        return Dates(tuple(child for child in children if isinstance(child, tuple)))

    def months(self, children: list[object]) -> Months:
        return cast("Months", children[-1])

    def time_list(self, children: list[Token]) -> list[Token]:
        return _of_type(children, "CLOCK", "NUMBER", "MARK")

    clock_list = time_list

    def number_list(self, children: list[Token]) -> list[Token]:
        return _of_type(children, "NUMBER")

    def times(self, children: list[object]) -> Times | Marks:
        tokens = cast("list[Token]", children[-1])
        if all(token.type == "MARK" for token in tokens):
            return Marks(tuple(_minute(token, token[1:]) for token in tokens))
        return Times(tuple(_time(token) for token in tokens))

    def past(self, _: list[Token]) -> None:
        return None

    def minute_marks(self, children: list[object]) -> Marks:
        tokens = next(cast("list[Token]", child) for child in children if isinstance(child, list))
        return Marks(tuple(_minute(token, token) for token in tokens))

    marks = minute_marks

    def window(self, children: list[Token]) -> Window:
        return Window(_time(children[1]), _time(children[3]))

    def __default__(self, data: object, children: list[object], meta: object) -> Tree[Token]:
        raise AssertionError(f"the grammar has a rule {data} that nothing reads: {children}, {meta}")


def _placed(token: Token, problem: str, suggestion: str = "", *, code: ScheduleCode) -> ScheduleError:
    return ScheduleError(problem, start=token.start_pos or 0, length=len(token), suggestion=suggestion, code=code)


def _time(token: Token) -> int:
    if token.type != "CLOCK":
        hour = token.lstrip(":")
        raise _placed(
            token,
            f"time: {token} could be morning, evening, or a minute; write which",
            f"{hour}am, {hour}pm, or {hour.zfill(2)}:00",
            code="invalid-time",
        )
    with placed("", token.start_pos or 0):
        return words.clock(token)


def _minute(token: Token, written: str) -> int:
    if token.type == "CLOCK":
        raise _placed(
            token,
            f"minute: {token} is a time of day, and minutes past the hour were expected",
            "at 15 past every hour",
            code="invalid-field",
        )
    minute = words.number(written.lstrip(":"))
    if minute > 59:  # noqa: PLR2004
        raise _placed(token, f"minute: {token} is out of range; allowed are 0-59", code="invalid-field")
    return minute


def _day(token: Token) -> str:
    if token.type == "LAST":
        return "L"
    day = words.ordinal(token)
    if not 1 <= day <= 31:  # noqa: PLR2004
        raise _placed(token, f"day of month: {token} is out of range; allowed are 1st to 31st", code="invalid-field")
    return str(day)


def _working_day(token: Token) -> str:
    if token.type == "LAST":
        return "LW"
    if words.ordinal(token) == 1:
        return "1W"
    raise _placed(
        token,
        "day of month: only the first and the last weekday of a month can be named by counting",
        "the weekday nearest the 15th of the month",
        code="invalid-field",
    )


def _nth_weekdays(ordinals: list[Token], days: list[int], *, open_ended: bool) -> tuple[str, ...]:
    items = []
    for token in ordinals:
        n = 0 if token.type == "LAST" else words.ordinal(token)
        if n > 5:  # noqa: PLR2004
            raise _placed(
                token,
                f"day of week: a month has no {token} one; allowed are first to fifth, and last",
                code="invalid-field",
            )
        if open_ended and n > 1:
            raise _placed(
                token,
                f"phrase: {token} could count weeks, or weekdays within a month; write which",
                f"{token} … of the month, or @every {n * 168}h",
                code="invalid-phrase",
            )
        items += [f"{day}#{n}" if n else f"{day}L" for day in days]
    return tuple(items)
