"""What time it is."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """What time it is."""

    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let others work for so long."""
        ...
