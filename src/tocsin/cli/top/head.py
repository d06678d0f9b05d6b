"""The head of the screen: versions, leader and problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.text import Text

from ... import __version__
from ...domain import duration
from ...domain.text import counted, printable
from ...subjects import TICKER_LEASE
from ..runtime.error_report import failure_of

MAX_CELL: Final = 40
"""Characters of a cell."""
MAX_LINE: Final = 300
"""Characters of a message, and of a line of the head."""
_HOUR_S: Final = 3_600


def plain(value: object, most: int = MAX_CELL) -> str:
    """Return the first line of a text, cut to `most` characters, with escapes."""
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


@dataclass(frozen=True, slots=True)
class Head:
    """The state of an installation as a whole."""

    line: str
    problems: tuple[str, ...]


def head_of(document: Mapping[str, Any]) -> Head:
    """Return the head of the screen for the document of `tocsin status`."""
    problems, server = tuple(document.get("problems", ())), document.get("server", {})
    count = counted(len(problems), "problem") if problems else "no problems"
    versions = f"tocsin {__version__} · nats-server {plain(server.get('version', 'unknown'))}"
    return Head(f"{plain(document['root'])} · {count} · {_leader(document.get('leases'))} · {versions}", problems)


def _leader(leases: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the process with the leading ticker."""
    if leases is None:
        return "leader unknown"
    holder = next((lease["holder"] for lease in leases if lease["name"] == TICKER_LEASE), None)
    return "no leader" if holder is None else f"leader {plain(holder)}"
