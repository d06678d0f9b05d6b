"""Texts of the screen."""

from datetime import datetime
from typing import Final

from rich.text import Text

from ...domain import duration
from ...domain.text import printable
from ..runtime.error_report import failure_of

MAX_CELL: Final = 40
"""Characters of a cell."""
MAX_LINE: Final = 300
"""Characters of a message, and of a line of the head."""
_HOUR_S: Final = 3_600


def plain(value: object, most: int = MAX_CELL) -> str:
    """Return the first line of a value's text, cut to `most` characters.

    Characters that do not print are escaped.
    """
    text = str(value)
    line = text[: most + 1].partition("\n")[0]
    return printable(line if len(line) == len(text) <= most else f"{line[: most - 1]}…")


def cell(value: object, style: str = "") -> Text:
    return Text(plain(value), style=style, no_wrap=True)


def age(since: datetime | None, now: datetime) -> str:
    """Return the time between two instants for people: `42s`, `5m3s`, `7h12m`; empty without the first."""
    if since is None:
        return ""
    length = max(0, int((now - since).total_seconds()))
    return duration.short(length if length < _HOUR_S else length - length % 60)


def failure_text(error: BaseException) -> str:
    failure = failure_of(error)
    return plain(f"{failure.error_code}: {failure.message}", MAX_LINE)
