"""How answers look: tables and sentences for people, JSON for programs; times local with their zone, or ISO in UTC."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.text import Text

from . import Format

_UNLIMITED: Final = 10_000
"""Columns of what is no terminal: whoever reads a pipe wants whole lines."""

STYLES: Final = {
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "running": "cyan",
    "admitted": "cyan",
    "started": "cyan",
    "dispatched": "cyan",
    "retrying": "yellow",
    "resolved": "green",
    "unresolved": "red",
    "exhausted": "red",
    "active": "green",
    "paused": "yellow",
    "disabled": "dim",
    "on demand": "cyan",
}
"""The colour of each state that a table shows."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where answers go, and in which form."""

    format: Format = "table"

    @property
    def is_json(self) -> bool:
        """Programs read it."""
        return self.format == "json"

    def answer(self, data: object, shown: Callable[[], Iterable[RenderableType]]) -> None:
        """Give an answer: `data` as JSON, or what `shown` makes for people."""
        if self.is_json:
            print(encoded(data, indent=2))
            return
        console = self.console()
        for renderable in shown():
            console.print(renderable)

    def line(self, data: object, shown: Text, *, is_whole: bool = False) -> None:
        """Give one of many answers, as soon as it is known: one line, which a terminal cuts unless it `is_whole`."""
        if self.is_json:
            print(encoded(data), flush=True)
            return
        console = self.console()
        if is_whole:
            console.print(shown, soft_wrap=True)  # the terminal wraps it, so that it is copied as one line
        else:
            console.print(shown, no_wrap=console.is_terminal, overflow="ellipsis", crop=console.is_terminal)
        console.file.flush()

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None: it is none."""
        console = self.console()
        return console.width if console.is_terminal else None

    def console(self) -> Console:
        """Standard output as it is now."""
        is_terminal = sys.stdout.isatty()
        return Console(file=sys.stdout, width=None if is_terminal else _UNLIMITED, highlight=False)


def is_interactive() -> bool:
    """Somebody is there to be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def encoded(data: object, *, indent: int | None = None) -> str:
    """JSON with instants as ISO 8601 in UTC."""
    return json.dumps(data, indent=indent, ensure_ascii=False, default=_plain)


def state(name: str) -> Text:
    """The name of a state, in its colour."""
    return Text(name, style=STYLES.get(name, ""))


def local(at: datetime | None) -> str:
    """An instant on this machine's wall clock, with its zone."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def seconds(length: float | None) -> str:
    """A measured length of time, rounded to what matters."""
    if length is None:
        return ""
    if length < 1:
        return f"{length * 1_000:.0f}ms"
    return f"{length:.1f}s" if length < 60 else f"{length // 60:.0f}m{length % 60:02.0f}s"  # noqa: PLR2004 - a minute


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever json.dumps does not know
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    return str(value)
