"""The place from which a stage without a durable reads the log after a restart."""

from collections.abc import Callable
from typing import Final, NamedTuple

from .. import telemetry
from ..ports import Clock, LogUnavailable, Projections
from ..subjects import Bucket

SAVE_INTERVAL_S: Final = 30.0
SHOW_INTERVAL_S: Final = 2.0

_log = telemetry.get_logger("tocsin.stages")


class Place(NamedTuple):
    """The place after which a stage reads the log, and how many events wait."""

    after: int
    waiting: int = 0


async def read_place(projections: Projections, cursor: str) -> Place | None:
    """Return the place under a key of the bucket `cursors`; None: none is stored."""
    entry = await projections.get(Bucket.CURSORS, cursor)
    return None if entry is None else Place(*map(int, entry[0].split()))


class SavedPlace:
    """Stores the place before the oldest event that still counts."""

    def __init__(self, projections: Projections, clock: Clock, cursor: str) -> None:
        """`cursor`: its key in the bucket `cursors`."""
        self._cursor = cursor
        self._projections = projections
        self._clock = clock
        self._saved_at = clock.monotonic()
        self._saved = Place(0)

    async def load(self) -> int:
        """Return the sequence after which to read; 0: the log is read from its beginning."""
        try:
            # Not the stream's own cursor: what is decided up to there may still be open.
            self._saved = await read_place(self._projections, self._cursor) or self._saved
        except LogUnavailable as error:
            _log.warning("cursor not readable", action="cursor-not-known", error=str(error))
        return self._saved.after

    async def save(
        self, oldest: Callable[[], int | None], upto: int, waiting: int = 0, *, is_last: bool = False
    ) -> None:
        """Store the place each 30 seconds, or sooner if the number of `waiting` events changed.

        The stage read the events up to the sequence `upto`. `oldest` returns the sequence of the oldest event that still counts, or None.
        """
        interval = SAVE_INTERVAL_S if waiting == self._saved.waiting else SHOW_INTERVAL_S
        if self._clock.monotonic() - self._saved_at < interval and not is_last:
            return
        self._saved_at, first = self._clock.monotonic(), oldest()
        place = Place(upto if first is None else min(upto, first - 1), waiting)
        if place != self._saved:
            numbers = place if waiting else place[:1]
            await self._projections.put(Bucket.CURSORS, self._cursor, " ".join(map(str, numbers)).encode())
            self._saved = place
