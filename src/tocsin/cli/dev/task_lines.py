"""The log lines of jobs among those of the live view: as short, and on the same clock."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from rich.text import Text
from typing_extensions import override

from ..output.format import Output

_LOGGER: Final = "tocsin.task"
_KNOWN: Final = frozenset(
    {"event", "job", "execution_id", "step", "attempt", "delivery", "function", "worker"}
    | {"action", "timestamp", "level", "logger"}
)
"""What every line has: the view tells it of the execution, or shows it in a column."""
_STYLES: Final = {logging.WARNING: "yellow", logging.ERROR: "red"}


class TaskLines(logging.Filter):
    """Takes the lines of jobs out of the log and shows them; those with a traceback stay where they are."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is left to the log."""
        line: object = record.msg
        if not isinstance(line, dict) or "exc_info" in line:
            return True
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        more = "  ".join(f"{name}={value}" for name, value in line.items() if name not in _KNOWN)
        shown = Text.assemble(
            (f"{at:%H:%M:%S} ", "dim"),
            (f" ¦ {record.levelname.lower():<13}", _STYLES.get(record.levelno, "dim")),
            (f" {line.get('job', ''):<24}", "bold"),
            f" {line.get('event', '')}  {more}".rstrip(),
        )
        self._output.line(line, shown)
        return False


@contextmanager
def shown(output: Output) -> Iterator[None]:
    """Show them while this lasts."""
    lines, logger = TaskLines(output), logging.getLogger(_LOGGER)
    logger.addFilter(lines)
    try:
        yield
    finally:
        logger.removeFilter(lines)
