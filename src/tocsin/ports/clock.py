"""The clock."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from ..domain.errors import TocsinError
from ..domain.spans import Span


class SpansLost(TocsinError):
    """Spans were not accepted, and are not sent again."""

    code = "spans-lost"

    def __init__(self, reason: str, *, rejected: int | None = None) -> None:
        """`rejected`: the number of the spans; None: all that were sent."""
        super().__init__(reason)
        self.rejected = rejected


class SpanExporter(Protocol):
    """Sends spans to a trace store."""

    async def export(self, spans: Sequence[Span]) -> None:
        """Send finished spans; the event loop goes on meanwhile.

        Raises:
            SpansLost: the trace store did not accept them in time.
        """

    def close(self) -> None:
        """End what is being sent; nothing is accepted afterwards."""


class Clock(Protocol):
    """A clock that the caller passes in, so that tests can move it."""

    def now(self) -> datetime:
        """Return the current time (aware, UTC)."""

    def monotonic(self) -> float:
        """Return seconds that never step back."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
