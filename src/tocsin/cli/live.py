"""The live view: one coloured line for everything that became of an execution."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from .. import following
from ..domain.events import (
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
    Recorded,
    Refused,
    Replayed,
    Resolved,
    Resumed,
    RetryScheduled,
    Skipped,
    Terminal,
)
from ..ports import EventLog
from ..subjects import Stream
from . import facts
from .output import Output, seconds

SHOWN: Final = (
    *(Defined, Paused, Resumed, Deleted),
    *(Passed, Admitted, Skipped, RetryScheduled, Exhausted, Completed, Failed, Cancelled),
    *(DeadLettered, Refused, Replayed, Resolved),
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
        async for recorded in following.follow(log, after=after):
            self.show(recorded)

    def show(self, recorded: Recorded[Message]) -> None:
        """Print one fact, if it is worth a line."""
        if isinstance(recorded.message, SHOWN) and not _is_expected(recorded.message):
            self._output.line(
                facts.as_json(recorded), facts.line(recorded, after=self._took(recorded), width=self._output.width)
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
