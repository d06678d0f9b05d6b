"""Tables that fit the terminal.

The least important columns are shortened or left out before a line wraps. A table in a pipe has all columns at full
width and no rule below its headings, because programs read it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .format import UNLIMITED, Output, local

Brief: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""Shortens all cells of a column for a narrow terminal."""

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

    `least`: headings of columns that may be shortened, then left out; the least important first. `brief`: shorter forms of whole
    columns by heading; used before any column is cut, and never cut themselves.
    """
    cells = [[cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row] for row in rows]
    if not cells:
        return Text(empty, style="dim")
    soft = set(least) - set(brief or {})
    columns = [
        _Column(heading, tuple(row[at] for row in cells), is_soft=heading in soft)
        for at, heading in enumerate(headings)
    ]
    for column in columns:
        if column.is_soft:
            for cell in column.cells:
                cell.no_wrap, cell.overflow = True, "ellipsis"
    return _Fitting(columns, least, brief or {})


def print_table(
    output: Output,
    data: object,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    least: Sequence[str] = (),
    brief: Mapping[str, Brief] | None = None,
) -> None:
    """Print `data` as JSON, or its rows as `table` does."""
    output.answer(data, lambda: [table(headings, rows, empty=empty, least=least, brief=brief)])


def unique_beginnings(ids: Sequence[str]) -> list[str]:
    """Shorten ids so that each stays unique in this list.

    Each keeps enough characters to be unique among all executions, too, with high probability.
    """
    sorted_ids = sorted(set(ids))
    shared = max((_shared(id_, other) for id_, other in pairwise(sorted_ids)), default=0)
    return [id_[: max(TELLING, shared + 1)] for id_ in ids]


def this_year(instants: Sequence[str]) -> list[str]:
    """Shorten instants from `local`: drop the year and the zone."""
    return [instant[5:].rpartition(" ")[0] for instant in instants]


def _shared(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class _Column:
    """One column with all its cells. `is_soft`: it may be shortened."""

    heading: str
    cells: tuple[Text, ...]
    is_soft: bool = False

    def in_brief(self, brief: Brief | None) -> "_Column":
        """Return the column with the short forms of its cells."""
        if brief is None:
            return self
        words = brief([cell.plain for cell in self.cells])
        cells = tuple(Text(word, style=cell.style) for word, cell in zip(words, self.cells, strict=True))
        return _Column(self.heading, cells)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table that selects its columns when the width is known."""

    columns: Sequence[_Column]
    least: Sequence[str]
    brief: Mapping[str, Brief]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns that fit, and name the hidden columns."""
        shown = self._fitted(console, options)
        yield _rendered(shown, console)
        if len(shown) < len(self.columns):
            names = {column.heading for column in shown}
            hidden = ", ".join(column.heading for column in self.columns if column.heading not in names)
            yield Text(f"columns hidden: {hidden} (widen the terminal or use -o json)", style="dim")

    def _fitted(self, console: Console, options: ConsoleOptions) -> list[_Column]:
        """Select columns for a width.

        All columns come first, then short forms, then as many columns as fit when they are shortened.
        """
        unlimited = options.update(max_width=UNLIMITED)

        def fits(columns: Sequence[_Column], stub: int | None = None) -> bool:
            return Measurement.get(console, unlimited, _rendered(columns, console, stub)).maximum <= options.max_width

        shown = list(self.columns)
        if not console.is_terminal or fits(shown):
            return shown
        shown = [column.in_brief(self.brief.get(column.heading)) for column in shown]
        for heading in self.least:
            if fits(shown, _STUB):
                break
            shown = [column for column in shown if column.heading != heading]
        return shown


def _rendered(columns: Sequence[_Column], console: Console, stub: int | None = None) -> Table:
    """Return a table that shortens its soft columns to fit.

    They fit the width of the console, or `stub` characters. Without soft columns, cells that are too long continue on the next line.
    """
    box = SIMPLE_HEAD if console.is_terminal else None
    rendered = Table(box=box, header_style="bold", pad_edge=False, show_edge=False)
    has_soft = any(column.is_soft for column in columns)
    for column in columns:
        is_kept = has_soft and not column.is_soft
        rendered.add_column(
            column.heading, overflow="fold", no_wrap=is_kept, max_width=stub if column.is_soft else None
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        rendered.add_row(*row)
    return rendered


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return local(value)
    return "" if value is None else str(value)
