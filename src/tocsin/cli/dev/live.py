"""The live view of `tocsin dev`: events and log lines of jobs."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from rich.text import Text
from typing_extensions import override

from ...domain import events
from ...domain.events import Message, Recorded
from ...ports import EventLog
from ...services import tail
from ...subjects import Stream
from ..output import event_lines
from ..output.format import Output, seconds

SHOWN: Final = (
    *(events.Defined, events.Paused, events.Resumed, events.Deleted, events.Passed, events.Admitted, events.Skipped),
    *(events.RetryScheduled, events.Exhausted, events.Completed, events.Failed, events.Cancelled),
    *(events.DeadLettered, events.PoisonMessage, events.Replayed, events.Resolved),
)
"""Events with a line in the live view. Those of single tasks and steps in progress have none."""


def _is_expected(fact: Message, since: datetime | None) -> bool:
    """Return whether instants passed because of a pause, or while `dev` did not run."""
    return isinstance(fact, events.Passed) and (fact.reason == "paused" or (since is not None and fact.start < since))


class LiveView:
    """Prints events as they arrive, and the duration of each execution."""

    def __init__(self, output: Output, since: datetime | None = None) -> None:
        """Leave out the instants that passed from before `since`."""
        self._output = output
        self._since = since
        self._begun: dict[str, datetime] = {}

    async def run(self, log: EventLog, *, after: Mapping[Stream, int]) -> None:
        """Follow the log until cancelled."""
        async for recorded in tail.follow(log, after=after):
            for event in events.unfold((recorded,)):
                self.show(event)

    def show(self, recorded: Recorded[Message]) -> None:
        """Print an event if it has a line in the live view."""
        if isinstance(recorded.message, SHOWN) and not _is_expected(recorded.message, self._since):
            self._output.line(
                event_lines.as_json(recorded),
                event_lines.line(recorded, after=self._took(recorded), width=self._output.width),
            )

    def _took(self, recorded: Recorded[Message]) -> str:
        match recorded.message:
            case events.Admitted() as fact:
                self._begun[fact.execution_id] = recorded.time
            case events.Terminal() as fact:
                start = self._begun.pop(fact.execution_id, None)
                return f"in {seconds((recorded.time - start).total_seconds())}" if start else ""
            case _:
                pass
        return ""


_KNOWN: Final = frozenset(
    {"event", "job", "execution_id", "step", "attempt", "delivery", "function", "worker"}
    | {"action", "timestamp", "level", "logger"}
)
"""Fields of every line: the live view shows them in columns or in other lines."""
_STYLES: Final = {logging.WARNING: "yellow", logging.ERROR: "red"}


class TaskLines(logging.Filter):
    """Moves log lines of jobs without a traceback into the live view."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        line: object = record.msg
        if not isinstance(line, dict) or "exc_info" in line:
            return True
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        details = "  ".join(f"{name}={value}" for name, value in line.items() if name not in _KNOWN)
        shown = Text.assemble(
            (f"{at:%H:%M:%S} ", "dim"),
            (f" ¦ {record.levelname.lower():<13}", _STYLES.get(record.levelno, "dim")),
            (f" {line.get('job', ''):<24}", "bold"),
            f" {line.get('event', '')}  {details}".rstrip(),
        )
        self._output.line(line, shown)
        return False


@contextmanager
def task_lines(output: Output) -> Iterator[None]:
    """Show log lines of jobs in the live view until the block ends."""
    lines, logger = TaskLines(output), logging.getLogger("tocsin.task")
    logger.addFilter(lines)
    try:
        yield
    finally:
        logger.removeFilter(lines)
