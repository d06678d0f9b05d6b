"""Tables that fit the terminal.

The least important columns are shortened or left out before a line wraps. A table in a pipe has all columns at full
width, because programs read it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .format import local

Brief: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""Shortens all cells of a column for a narrow terminal."""

_GAP: Final = 3
"""Characters between two columns."""
_STUB: Final = 12
"""The smallest width of a shortened column."""
TELLING: Final = 18
"""Characters of an id that hold its instant (13) and nearly always identify one execution of that instant."""


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    least: Sequence[str] = (),
    brief: Mapping[str, Brief] | None = None,
) -> RenderableType:
    """Return a table, or the sentence `empty` if there are no rows.

    Args:
        headings: a heading for each column.
        rows: the cells of each row.
        empty: the sentence to show without rows.
        least: headings of columns that may be shortened, then left out; the least important first.
        brief: shorter forms of whole columns by heading; used before any column is cut, and never cut themselves.
    """
    cells = [[cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row] for row in rows]
    columns = [Column(heading, tuple(row[at] for row in cells)) for at, heading in enumerate(headings)]
    return _Fitting(columns, least, brief or {}) if cells else Text(empty, style="dim")


def unique_beginnings(ids: Sequence[str]) -> list[str]:
    """Shorten ids so that each stays unique in this list.

    Each keeps enough characters to be unique among all executions, too, with high probability.
    """
    ordered = sorted(set(ids))
    shared = max((_shared(one, other) for one, other in pairwise(ordered)), default=0)
    return [one[: max(TELLING, shared + 1)] for one in ids]


def this_year(instants: Sequence[str]) -> list[str]:
    """Shorten instants from `local`: drop the year and the zone."""
    return [instant[5:19] for instant in instants]


def _shared(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class Column:
    """One column with all its cells."""

    heading: str
    cells: tuple[Text, ...]
    limit: int | None = None
    """The largest width in characters; None: not shortened."""

    @property
    def width(self) -> int:
        """The width in characters."""
        widest = max(len(self.heading), *(max(map(len, cell.plain.splitlines()), default=0) for cell in self.cells))
        return widest if self.limit is None else min(widest, self.limit)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table that selects its columns when the width is known."""

    columns: Sequence[Column]
    least: Sequence[str]
    brief: Mapping[str, Brief]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns that fit, and name the hidden columns."""
        shown = fitted(self.columns, options.max_width, self.least, self.brief)
        made = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
        for column in shown:
            cut = column.limit is not None
            made.add_column(column.heading, overflow="ellipsis" if cut else "fold", no_wrap=cut, max_width=column.limit)
        for row in zip(*(column.cells for column in shown), strict=True):
            made.add_row(*row)
        yield made
        if len(shown) < len(self.columns):
            names = {column.heading for column in shown}
            missing = ", ".join(one.heading for one in self.columns if one.heading not in names)
            yield Text(f"columns hidden: {missing} (widen the terminal or use -o json)", style="dim")


def fitted(columns: Sequence[Column], room: int, least: Sequence[str], brief: Mapping[str, Brief]) -> list[Column]:
    """Select and shorten columns for a width.

    All columns at full width come first, then short forms, then shortened columns, then fewer columns.
    """
    shown = list(columns)
    if _excess(shown, room) <= 0:
        return shown
    shown = [_in_brief(column, brief.get(column.heading)) for column in shown]
    soft = [heading for heading in least if heading not in brief]
    for heading in least:
        if _excess(shown, room) <= sum(max(0, one.width - _STUB) for one in shown if one.heading in soft):
            break
        shown = [column for column in shown if column.heading != heading]
    for heading in soft:
        excess = _excess(shown, room)
        shown = [_cut(one, excess) if one.heading == heading and excess > 0 else one for one in shown]
    return shown


def _excess(columns: Sequence[Column], room: int) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1) - room


def _in_brief(column: Column, brief: Brief | None) -> Column:
    if brief is None:
        return column
    words = brief([cell.plain for cell in column.cells])
    cells = tuple(Text(word, style=cell.style) for word, cell in zip(words, column.cells, strict=True))
    return Column(column.heading, cells)


def _cut(column: Column, by: int) -> Column:
    return Column(column.heading, column.cells, limit=max(min(_STUB, column.width), column.width - by))


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return local(value)
        case _:
            return str(value)
