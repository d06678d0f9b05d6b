"""The place from which a stage without a durable reads the log after a restart."""

from collections.abc import Callable
from typing import Final

from .. import telemetry
from ..ports import Clock, LogUnavailable, Projections
from ..subjects import Bucket

SAVE_INTERVAL_S: Final = 30.0

_log = telemetry.get_logger("tocsin.stages")


class SavedPlace:
    """Stores the place before the oldest event that still counts."""

    def __init__(self, projections: Projections, clock: Clock, cursor: str) -> None:
        """`cursor`: its key in the bucket `cursors`."""
        self._cursor = cursor
        self._projections = projections
        self._clock = clock
        self._saved_at = clock.monotonic()
        self._saved: bytes | None = None

    async def load(self) -> int:
        """Return the sequence after which to read; 0: the log is read from its beginning."""
        try:
            # Not the stream's own cursor: what is decided up to there may still be open.
            if (entry := await self._projections.get(Bucket.CURSORS, self._cursor)) is not None:
                return int(entry[0])
        except LogUnavailable as error:
            _log.warning("cursor not readable", action="cursor-not-known", error=str(error))
        return 0

    async def save(self, find_oldest: Callable[[], int | None], upto: int, *, is_last: bool = False) -> None:
        """Store the place of a stage, at most every 30 seconds unless it `is_last`.

        The stage read the events up to the sequence `upto`. `find_oldest` returns the sequence of the oldest event that still counts, or None.
        """
        if self._clock.monotonic() - self._saved_at < SAVE_INTERVAL_S and not is_last:
            return
        self._saved_at = self._clock.monotonic()
        oldest = find_oldest()
        cursor = str(upto if oldest is None else min(upto, oldest - 1)).encode()
        if cursor != self._saved:
            await self._projections.put(Bucket.CURSORS, self._cursor, cursor)
            self._saved = cursor
