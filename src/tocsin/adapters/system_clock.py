"""The clock of this machine."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Implement `ports.Clock`."""

    def now(self) -> datetime:
        """Return the current time (UTC)."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
