"""The clock, and the export of traces."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from ..domain.events import Message, Recorded


class TraceExport(Protocol):
    """Exports the traces of executions whose events the recorder has recorded."""

    def take(self, messages: Iterable[Recorded[Message]], causes: Mapping[int, str]) -> None:
        """Note the beginnings and ends of executions, and the causes of events, by number."""

    async def run(self) -> None:
        """Export until cancelled."""


class Clock(Protocol):
    """A clock that the caller passes in, so that tests can move it."""

    def now(self) -> datetime:
        """Return the current time (aware, UTC)."""

    def monotonic(self) -> float:
        """Return seconds that never step back."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
