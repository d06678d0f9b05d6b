"""The calendar's error class."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Final, Literal, TypeAlias

from ..errors import TocsinError
from ..text import excerpt

ScheduleCode: TypeAlias = Literal[
    "contradictory-timezone",
    "invalid-dst-policy",
    "invalid-expression",
    "invalid-field",
    "invalid-instant",
    "invalid-interval",
    "invalid-phrase",
    "invalid-time",
    "invalid-timezone",
    "never-fires",
]
_INDENT: Final = "  "


class ScheduleError(TocsinError, ValueError):
    """A schedule that is invalid, or that could never fire.

    The parser of a part raises it with a position in that part (see `placed`).

    Attributes:
        code: the kind of the problem, one of `codes`.
        problem: one sentence: the field, the value, and the allowed values.
        text: the whole text; empty while the position in it is not known yet.
        start, length: the position in `text`, in characters.
        suggestion: a valid text; empty if none fits.
    """

    codes: ClassVar[Mapping[str, str]] = {
        "contradictory-timezone": "The phrase names another time zone than the field `timezone`.",
        "invalid-dst-policy": "`dst.gap` or `dst.fold` is unknown.",
        "invalid-expression": "The text is neither an expression, a special expression nor a phrase.",
        "invalid-field": "A field of a cron expression, or a minute of a phrase, is invalid.",
        "invalid-instant": "An instant cannot be read, does not exist, or has no offset.",
        "invalid-interval": "The interval of `@every` cannot be read or is out of range.",
        "invalid-phrase": "A phrase cannot be read, contradicts itself, or is ambiguous.",
        "invalid-time": "A time of day in a phrase does not exist or is ambiguous.",
        "invalid-timezone": "The time zone is not an IANA name.",
        "never-fires": "The schedule fires at no time from now on; the text says why.",
    }
    """The meaning of each code."""

    def __init__(
        self,
        problem: str,
        *,
        text: str = "",
        start: int = 0,
        length: int = 1,
        suggestion: str = "",
        code: ScheduleCode,
    ) -> None:
        self.problem = problem
        self.code: ScheduleCode = code
        self.text = text
        self.start = start
        self.length = max(length, 1)
        self.suggestion = suggestion
        super().__init__(self._message())

    def within(self, text: str, start: int) -> "ScheduleError":
        """Return the error for `text`, in which the parsed part begins at `start`."""
        return ScheduleError(
            self.problem,
            text=text,
            start=start + self.start,
            length=self.length,
            suggestion=self.suggestion,
            code=self.code,
        )

    def _message(self) -> str:
        lines = [self.problem]
        if self.text:
            shown, column = excerpt(self.text, self.start)
            room = max(1, len(shown) - column)
            lines += [_INDENT + shown, _INDENT + " " * column + "^" * min(self.length, room)]
        if self.suggestion:
            lines.append(f"try: {self.suggestion}")
        return "\n".join(lines)


@contextmanager
def placed(text: str, start: int) -> Iterator[None]:
    """Place the errors of a block in `text`, whose part at `start` is parsed."""
    try:
        yield
    except ScheduleError as error:
        raise error.within(text, start) from None
