"""Places of the log at which a reader can begin: ends of known genuine commits.

A process knows its own start, one commit of each few that it read, and the places that events of the log name. A process that leads stages shows some
places in the bucket `snapshots`, with a proof by the key of the installation, for processes that fold nothing: a command begins there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from .. import telemetry
from ..domain.commit import LogHead, Seal
from ..ports import Clock, Projections
from ..ports.commit_log import CommitLog
from ..subjects import Bucket

INTERVAL: Final = 1_024
"""Events between two heads that are remembered, at first."""
MAX_HEADS: Final = 1_024
"""Heads that are remembered; of more, every second is left out."""
STEP: Final = 2
"""The least ratio between the distances of a shown head and of the next newer shown head from the newest."""
SHOW_INTERVAL_S: Final = 1.0
SHOWN: Final = "heads"
"""The key of the heads that are shown."""

_log = telemetry.get_logger("tocsin.engine")


class Heads:
    """The heads that a process knows, by the numbers of their newest events."""

    def __init__(self, known: Iterable[LogHead]) -> None:
        self._interval = INTERVAL
        self._heads = sorted(known, key=_number)

    def note(self, head: LogHead) -> None:
        """Remember a head behind all others, unless it is near the last."""
        if head.number < self._heads[-1].number + self._interval:
            return
        self._heads.append(head)
        if len(self._heads) > MAX_HEADS:
            self._heads = [self._heads[0], *self._heads[2::2]]
            self._interval *= 2

    def before(self, number: int) -> LogHead:
        """Return the newest head at or before a number, or else the oldest head."""
        return self._heads[max(bisect_right(self._heads, number, key=_number) - 1, 0)]

    def shown(self, newest: LogHead, others: Iterable[LogHead] = ()) -> tuple[LogHead, ...]:
        """Return a few of these and of other heads, the oldest first.

        The farther back, the fewer heads are kept.
        """
        shown, distance = [newest], 1
        for head in sorted({*self._heads, *others}, key=_number, reverse=True):
            if newest.number - head.number >= distance or head is self._heads[0]:
                shown.append(head)
                distance = STEP * (newest.number - head.number)
        return tuple(reversed(shown))


def _number(head: LogHead) -> int:
    return head.number


class SharedHeads:
    """The heads of a partition that a leader shows."""

    def __init__(self, projections: Projections, seal: Seal) -> None:
        self._projections = projections
        self._seal = seal

    async def show(self, heads: Callable[[], tuple[LogHead, ...] | None], clock: Clock) -> None:
        """Show the heads of this process until cancelled, while there are any."""
        last: tuple[LogHead, ...] | None = None
        while True:
            known = heads()
            if known is not None and known != last:
                try:
                    await self._projections.put(Bucket.SNAPSHOTS, SHOWN, self._seal.sign(known))
                    last = known
                except Exception as error:  # noqa: BLE001 - readers begin earlier
                    _log.debug("heads not shown", action="heads-not-shown", error=repr(error))
            await clock.sleep(SHOW_INTERVAL_S)

    async def load(self, log: CommitLog, partition: int) -> tuple[LogHead, ...]:
        """Return the proved heads up to the newest that the log has, oldest first.

        (): the heads have no proof, or the log lacks all of these.

        Raises:
            LogUnavailable: the log did not answer.
        """
        stored = await self._projections.get(Bucket.SNAPSHOTS, SHOWN)
        heads = () if stored is None else self._seal.signed(stored[0])
        if stored is not None and not heads:
            _log.warning("heads without a proof, refused", action="heads-refused")
        for count in range(len(heads), 0, -1):
            newest = heads[count - 1]
            if not newest.number or await _is_there(log, partition, newest):
                return heads[:count]
            _log.warning("head that the log does not have, refused", action="head-refused", number=newest.number)
        return ()


async def _is_there(log: CommitLog, partition: int, head: LogHead) -> bool:
    stored = await log.next(partition, after=head.sequence - 1)
    return stored is not None and blake2b(stored.body, digest_size=32).hexdigest() == head.digest
