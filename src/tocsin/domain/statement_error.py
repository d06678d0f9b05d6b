"""The error of a statement in SQL, with its place."""

from typing import NamedTuple

from .errors import TocsinError
from .text import excerpt


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
    shown, column = excerpt(lines[place.line - 1] if place.line <= len(lines) else "", place.column - 1)
    return [f"  {shown}", "  " + " " * column + "^"]
