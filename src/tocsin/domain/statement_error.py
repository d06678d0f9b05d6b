"""The error of a statement in SQL, with its place."""

from typing import Final, NamedTuple

from .errors import TocsinError

_EXCERPT: Final = 96


class Place(NamedTuple):
    """A place in a text, counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class StatementError(TocsinError, ValueError):
    """A text that is not a statement, or a clause that is refused.

    Attributes:
        allowed: what may be there, if the grammar decides.
        suggestion: the keyword that was probably meant; empty if none is similar.
    """

    code = "invalid-statement"

    def __init__(
        self, problem: str, place: Place, *, text: str = "", allowed: tuple[str, ...] = (), suggestion: str = ""
    ) -> None:
        self.problem = problem
        self.place = place
        self.allowed = allowed
        self.suggestion = suggestion
        lines = [f"{place}: {problem}"]
        if text:
            lines += _excerpt(text, place)
        if suggestion:
            lines.append(f"did you mean {suggestion}?")
        if allowed:
            lines.append(f"allowed here: {', '.join(allowed)}")
        super().__init__("\n".join(lines))


def _excerpt(text: str, place: Place) -> list[str]:
    lines = text.split("\n")
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    begin = max(0, place.column - 1 - _EXCERPT // 2) if len(line) > _EXCERPT else 0
    window = "".join(c if c.isprintable() else " " for c in line[begin : begin + _EXCERPT])
    return [f"  {window}", "  " + " " * (place.column - 1 - begin) + "^"]
