"""The live view: one coloured line for everything that became of an execution."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from rich.text import Text
from typing_extensions import override

from ...domain.events import (
    Admitted,
    Cancelled,
    Completed,
    DeadLettered,
    Defined,
    Deleted,
    Exhausted,
    Failed,
    Message,
    Passed,
    Paused,
    PoisonMessage,
    Recorded,
    Replayed,
    Resolved,
    Resumed,
    RetryScheduled,
    Skipped,
    Terminal,
)
from ...ports import EventLog
from ...services import tail
from ...subjects import Stream
from ..output import event_lines
from ..output.format import Output, seconds

SHOWN: Final = (
    *(Defined, Paused, Resumed, Deleted),
    *(Passed, Admitted, Skipped, RetryScheduled, Exhausted, Completed, Failed, Cancelled),
    *(DeadLettered, PoisonMessage, Replayed, Resolved),
)
"""What is worth a line; each task and each step on its way is not."""


def _is_expected(fact: Message) -> bool:
    """A paused job lets each of its instants pass: that it is paused was told."""
    return isinstance(fact, Passed) and fact.reason == "paused"


class LiveView:
    """Prints facts as they come, and how long each execution took."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begun: dict[str, datetime] = {}

    async def run(self, log: EventLog, *, after: Mapping[Stream, int]) -> None:
        """Follow the log for ever."""
        async for recorded in tail.follow(log, after=after):
            self.show(recorded)

    def show(self, recorded: Recorded[Message]) -> None:
        """Print one fact, if it is worth a line."""
        if isinstance(recorded.message, SHOWN) and not _is_expected(recorded.message):
            self._output.line(
                event_lines.as_json(recorded),
                event_lines.line(recorded, after=self._took(recorded), width=self._output.width),
            )

    def _took(self, recorded: Recorded[Message]) -> str:
        match recorded.message:
            case Admitted() as fact:
                self._begun[fact.execution_id] = recorded.time
            case Terminal() as fact:
                begun = self._begun.pop(fact.execution_id, None)
                return f"in {seconds((recorded.time - begun).total_seconds())}" if begun else ""
            case _:
                pass
        return ""


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
def task_lines(output: Output) -> Iterator[None]:
    """Show them while this lasts."""
    lines, logger = TaskLines(output), logging.getLogger(_LOGGER)
    logger.addFilter(lines)
    try:
        yield
    finally:
        logger.removeFilter(lines)
