"""The place in the log from which a matcher that starts reads."""

from typing import Final

from ... import subjects, telemetry
from ...domain.task_board import TaskBoard
from ...ports import Clock, LogUnavailable, Projections
from ...subjects import MATCHER, Bucket, Stream

SAVE_INTERVAL_S: Final = 30.0
CURSOR: Final = subjects.cursor(Stream.LOG, MATCHER)

_log = telemetry.get_logger("tocsin.matcher")


class SavedPlace:
    """Stores the place before the oldest task that is not over."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        self._projections = projections
        self._clock = clock
        self._saved_at = clock.monotonic()
        self._saved: bytes | None = None

    async def load(self) -> int:
        """Return the stored place; 0: none."""
        try:
            if (entry := await self._projections.get(Bucket.CURSORS, CURSOR)) is not None:
                return int(entry[0])
        except LogUnavailable as error:
            _log.warning("cursor not readable", action="cursor-not-known", error=str(error))
        return 0

    async def save(self, board: TaskBoard, upto: int) -> None:
        """Store the place of a board with the events up to a sequence."""
        if self._clock.monotonic() - self._saved_at < SAVE_INTERVAL_S:
            return
        self._saved_at = self._clock.monotonic()
        oldest = board.oldest
        cursor = str(upto if oldest is None else min(upto, oldest - 1)).encode()
        if cursor != self._saved:
            await self._projections.put(Bucket.CURSORS, CURSOR, cursor)
            self._saved = cursor
