"""The clock of this machine."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Implement `ports.Clock`."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
