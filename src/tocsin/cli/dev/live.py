"""The live view: one coloured line for everything that became of an execution."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

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
