"""The calendar's error class."""

from typing import Final

from ..errors import TocsinError

_CODES: Final = {
    "timezone": "invalid-timezone",
    "expression": "invalid-expression",
    "phrase": "invalid-phrase",
    "time": "invalid-time",
    "at": "invalid-instant",
    "after": "invalid-instant",
    "duration": "invalid-interval",
    "dst.gap": "invalid-dst-policy",
    "dst.fold": "invalid-dst-policy",
    "second": "invalid-field",
    "minute": "invalid-field",
    "hour": "invalid-field",
    "day of month": "invalid-field",
    "month": "invalid-field",
    "day of week": "invalid-field",
}
"""The code of an error, by the part of the schedule that its sentence begins with."""
_EXCERPT: Final = 96
_INDENT: Final = "  "


class ScheduleError(TocsinError, ValueError):
    """A schedule that is invalid, or that could never fire.

    Attributes:
        problem: one sentence: the field, the value, and the allowed values.
        text: the whole text; empty while the position in it is not known yet.
        start, length: the position in `text`, in characters.
        suggestion: a valid text; empty if none fits.
    """

    code = "invalid-schedule"

    def __init__(
        self,
        problem: str,
        *,
        text: str = "",
        start: int = 0,
        length: int = 1,
        suggestion: str = "",
        code: str | None = None,
    ) -> None:
        self.problem = problem
        self.code = code or _CODES.get(problem.partition(":")[0], type(self).code)
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
            excerpt, column = self._excerpt()
            room = max(1, len(excerpt) - column)
            lines += [_INDENT + excerpt, _INDENT + " " * column + "^" * min(self.length, room)]
        if self.suggestion:
            lines.append(f"try: {self.suggestion}")
        return "\n".join(lines)

    def _excerpt(self) -> tuple[str, int]:
        # One line, one column per character: the caret must be below its position in any text.
        begin = max(0, self.start - _EXCERPT // 2) if len(self.text) > _EXCERPT else 0
        window = self.text[begin : begin + _EXCERPT]
        return "".join(c if c.isprintable() else " " for c in window), self.start - begin
