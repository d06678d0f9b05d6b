"""The time of this machine."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Implements `ports.Clock`."""

    def now(self) -> datetime:
        """Aware, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never step back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let others work for so long."""
        await asyncio.sleep(seconds)
