"""The clock."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """A clock that the caller passes in, so that tests can move it."""

    def now(self) -> datetime:
        """Return the current time (aware, UTC)."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never step back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...
