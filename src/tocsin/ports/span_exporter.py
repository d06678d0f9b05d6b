"""The export of spans to a trace store."""

from collections.abc import Sequence
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
        ...

    def close(self) -> None:
        """End what is being sent; nothing is accepted afterwards."""
        ...
