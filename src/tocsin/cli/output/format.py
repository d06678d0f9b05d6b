"""The format of answers: text for users, JSON for programs."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from ...domain.events import as_model
from ...domain.schedule.clock_changes import local_time
from ...domain.text import printable_lines
from ..runtime.errors import Exit, UsageError
from . import Format

_CONTROLS: Final = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON need not escape, and that can change a terminal or the order of its text."""
UNLIMITED: Final = 10_000
"""The width of a pipe or file: programs that read it need whole lines."""

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
"""The colour of each state in a table."""


@dataclass(frozen=True, slots=True)
class Output:
    """The destination and format of answers."""

    format: Format = "table"

    @property
    def is_json(self) -> bool:
        return self.format == "json"

    def answer(self, data: object, shown: Callable[[], Iterable[RenderableType]]) -> None:
        """Print an answer: `data` as JSON, or the result of `shown` as text."""
        with until_closed():
            if self.is_json:
                print(encoded(data, indent=2))
                return
            console = self.console()
            for renderable in shown():
                console.print(renderable)

    def action(
        self, kind: str, name: str, verb: str, *, changed: bool = True, otherwise: str = "it was already"
    ) -> None:
        """Print an action on a named thing; `otherwise`: why it changed nothing."""
        self.answer(
            {kind: name, "action": verb, "changed": changed},
            lambda: [Text.assemble((f"{verb} ", "yellow"), (name, "bold"), "" if changed else f" ({otherwise})")],
        )

    def print(self, lines: Iterable[RenderableType]) -> None:
        """Print lines, unless answers are JSON."""
        if not self.is_json:
            self.answer(None, lambda: lines)

    def line(self, data: object, shown: Text, *, is_whole: bool = False) -> None:
        """Print one line of a stream of answers immediately.

        A terminal cuts a long line unless `is_whole` is set.
        """
        with until_closed():
            if self.is_json:
                print(encoded(data))
                return
            console = self.console()
            if is_whole:
                console.print(shown, soft_wrap=True)  # the terminal wraps it, so that it is copied as one line
            else:
                console.print(shown, no_wrap=console.is_terminal, overflow="ellipsis", crop=console.is_terminal)

    @property
    def width(self) -> int | None:
        """The width of the terminal; None if standard output is not a terminal."""
        console = self.console()
        return console.width if console.is_terminal else None

    def console(self) -> Console:
        is_terminal = sys.stdout.isatty()
        return _Console(file=sys.stdout, width=None if is_terminal else UNLIMITED, highlight=False)


class _Console(Console):
    """A console that reports a closed pipe; rich would end the process.

    It escapes the control characters in texts, because a job, a worker or a user may have sent them to change the terminal.
    Only its own styles reach the terminal.
    """

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@contextmanager
def until_closed() -> Iterator[None]:
    """Flush standard output at the end of the block."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter must not write to the pipe when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UsageError(
            "the output is incomplete, because its reader closed the pipe: run the command again",
            Exit.INTERRUPTED,
            code="output-closed",
        ) from None


@contextmanager
def destination(out: Path | None, *, is_compressed: bool = False) -> Iterator[BinaryIO]:
    """Yield a file for an answer; None: standard output.

    The file appears only when it is complete.
    """
    if out is None:
        with until_closed():
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        with unfinished.open("wb") as raw:
            if is_compressed:
                # Without a name and time, so that the same log gives the same file.
                import gzip  # noqa: PLC0415 - few answers are compressed

                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as compressed:
                    yield cast("BinaryIO", compressed)
            else:
                yield raw
        unfinished.replace(out)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{out}: {reason}; check the path and the disk", Exit.NOT_FOUND, code="unwritable-file"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


def is_interactive() -> bool:
    """Return whether standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def encoded(data: object, *, indent: int | None = None) -> str:
    """Encode data as JSON, with times in UTC, and with characters that print."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    text = json.dumps(data, indent=indent, ensure_ascii=not is_unicode, default=_plain)
    return _CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def state(name: str) -> Text:
    return Text(name, style=STYLES.get(name, ""))


def local(at: datetime | None) -> str:
    """Format an instant in the local time zone, to the millisecond if it has any."""
    if at is None:
        return ""
    milliseconds = f".{at.microsecond // 1_000:03}" if at.microsecond else ""
    return at.astimezone().strftime(f"%Y-%m-%d %H:%M:%S{milliseconds} %Z")


def zoned(at: datetime | None, timezone: str) -> str:
    """Format an instant on the wall clock of a time zone, with its offset."""
    return "" if at is None else local_time(timezone, at).isoformat(" ", "seconds")


def seconds(length: float | None) -> str:
    """Format a measured duration with a sensible precision."""
    if length is None:
        return ""
    if length < 1:
        return f"{length * 1_000:.0f}ms"
    return f"{length:.1f}s" if length < 60 else f"{length // 60:.0f}m{length % 60:02.0f}s"  # noqa: PLR2004 - a minute


def _plain(value: Any) -> object:  # noqa: ANN401 - any type that json.dumps does not support
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if hasattr(value := as_model(value), "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    return str(value)
