"""The grammar, and the errors of texts that do not follow it."""

from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ..english import MONTHS, WEEKDAYS
from ..errors import ScheduleError

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


def parse_tree(text: str) -> Tree[Token]:
    """Parse a text by the grammar.

    Raises:
        ScheduleError: placed at the first unexpected word.
    """
    try:
        return _grammar().parse(text)
    except UnexpectedInput as error:
        raise _unreadable(text, error) from None


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
