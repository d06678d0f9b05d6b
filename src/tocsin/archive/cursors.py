"""Up to where all is decided: what is delivered from there was dealt with long ago, and may be archived since.

An archived execution is gone from the log, where appending its first fact would succeed again. So whoever is given a message
that is not new asks first. Nothing that is younger than `LATE` was ever archived, so the usual road reads nothing.
"""

from datetime import datetime, timedelta
from typing import Final

from ..ports import Clock, Projections
from ..subjects import Bucket, Stream, cursor

LATE: Final = timedelta(seconds=60)
KEPT: Final = 1.0
"""Seconds that an answer is good for: one of many messages of a backlog asks."""


class Cursors:
    """Knows what was decided."""

    def __init__(self, projections: Projections, clock: Clock, *, late: timedelta = LATE) -> None:
        """`late`: how old a message must be that may have been archived."""
        self._projections = projections
        self._clock = clock
        self._late = late
        self._known: dict[Stream, tuple[float, int]] = {}

    async def is_behind(self, stream: Stream, sequence: int, stored_at: datetime) -> bool:
        """Whether a message was dealt with before anything about it could be archived.

        Raises:
            LogUnavailable: no answer.
        """
        if self._clock.now() - stored_at < self._late:
            return False
        asked_at, upto = self._known.get(stream, (float("-inf"), 0))
        if self._clock.monotonic() - asked_at > KEPT:
            asked_at = self._clock.monotonic()
            found = await self._projections.get(Bucket.CURSORS, cursor(stream))
            upto = 0 if found is None else int(found[0])
            self._known[stream] = asked_at, upto
        return sequence <= upto
