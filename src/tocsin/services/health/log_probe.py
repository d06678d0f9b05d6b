"""Whether the log answers, for probes of anonymous callers."""

from ...ports import EventLog, LogUnavailable
from ..shared_read import SharedRead


class LogProbe:
    """Checks that the log answers, once a second at most (`SharedRead`)."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._shared = SharedRead(self._ask)

    async def is_reached(self) -> bool:
        """Return whether the log answers, or did up to a second ago."""
        return await self._shared.answer()

    async def _ask(self) -> bool:
        try:
            await self._log.now()
        except LogUnavailable:
            return False
        return True
