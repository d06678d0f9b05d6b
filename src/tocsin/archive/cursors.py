"""The sequence of each stream up to which everything is decided.

A redelivered message before that sequence was handled long ago and may be archived. An archived execution is gone from the
log, so appending its first fact would succeed again; a stage therefore checks old messages first. A message younger than
`LATE` was never archived, so in most cases nothing is read.
"""

from datetime import datetime, timedelta
from typing import Final

from ..ports import Clock, Projections
from ..subjects import Bucket, Stream, cursor

LATE: Final = timedelta(seconds=60)
KEPT: Final = 1.0
"""Seconds for which a cursor is cached, so that a backlog reads it once."""


class Cursors:
    """Reads and caches the cursors."""

    def __init__(self, projections: Projections, clock: Clock, *, late: timedelta = LATE) -> None:
        """`late`: minimum age of a message that may be archived."""
        self._projections = projections
        self._clock = clock
        self._late = late
        self._known: dict[Stream, tuple[float, int]] = {}

    async def is_behind(self, stream: Stream, sequence: int, stored_at: datetime) -> bool:
        """Return whether everything about a message is decided, so that it may be archived.

        Raises:
            LogUnavailable: the log did not answer.
        """
        if self._clock.now() - stored_at < self._late:
            return False
        read_at, upto = self._known.get(stream, (float("-inf"), 0))
        if self._clock.monotonic() - read_at > KEPT:
            read_at = self._clock.monotonic()
            entry = await self._projections.get(Bucket.CURSORS, cursor(stream))
            upto = 0 if entry is None else int(entry[0])
            self._known[stream] = read_at, upto
        return sequence <= upto
