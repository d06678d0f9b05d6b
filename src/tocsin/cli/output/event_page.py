"""The facts of one execution, or on one instant of a job: below each other, with what all of them are of left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ...domain.events import Message, Recorded
from .event_lines import describe

_LEAST: Final = 8
"""Columns for the particulars, however narrow the terminal is."""


@dataclass(frozen=True, slots=True)
class FactPage:
    """A line for each; particulars that need more go on below themselves."""

    facts: Sequence[Recorded[Message]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show them."""
        times = [recorded.time.astimezone() for recorded in self.facts]
        clock = "%H:%M:%S" if len({at.date() for at in times}) == 1 else "%Y-%m-%d %H:%M:%S"
        for at, recorded in zip(times, self.facts, strict=True):
            described = describe(recorded.message)
            head = Text.assemble(
                (f"{at.strftime(clock)} ", "dim"), (f" {described.sign} {described.verb:<13} ", described.style)
            )
            room = max(_LEAST, options.max_width - len(head))
            first, *rest = Text(described.detail).wrap(console, room) or [Text()]
            yield _of(head, first)
            for more in rest:
                yield _of(Text(" " * len(head)), more)


def _of(head: Text, detail: Text) -> Text:
    line = head + detail
    line.rstrip()
    return line
