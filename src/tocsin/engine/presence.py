"""The presence of each process that reads the log of commits.

It has the formats that the process reads, and its progress.

Each process keeps an entry with a time to live. A commit of a newer format is stored only once every process that is present reads it, since a
process that meets a format it does not know stops. `tocsin doctor` names processes that hold a format up, that are late, or that have an unanswered
commit.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from .. import telemetry
from ..domain.commit import FORMAT
from ..ports import Clock, LogUnavailable, Projections, SequenceConflict
from ..subjects import PROCESS, Bucket, process_key

INTERVAL_S: Final = 1.0
"""Seconds between two entries of a process."""
TTL_S: Final = 15.0
"""Seconds after which an entry ends; a process that cannot renew it for so long cannot store a commit either."""
OLDEST: Final = 1
"""The format that every version reads."""

_log = telemetry.get_logger("tocsin.engine")


class StreamPlace(msgspec.Struct, frozen=True):
    """The progress of a process in a stream of inputs."""

    filters: tuple[str, ...]
    seen: int


class Present(msgspec.Struct, frozen=True):
    """The entry of a process.

    Attributes:
        name: the writer of its commits.
        formats: the formats that it reads.
        at: its time (UTC).
        stages: the stages that it was started with.
        led: the stages for which it decides.
        sequence: the newest message of the log that it read.
        number: the newest event.
        floor: the number up to which all its stages took the events.
        streams: the streams of inputs that it reads.
        unanswered: the reason why a commit is not answered, and the seconds since it was sent; None: no commit waits.
        lost: the seconds since which a reader could not be made, by its stream.
    """

    name: str
    formats: tuple[int, ...]
    at: datetime
    stages: tuple[str, ...] = ()
    led: tuple[str, ...] = ()
    sequence: int = 0
    number: int = 0
    floor: int = 0
    streams: Mapping[str, StreamPlace] = {}
    unanswered: tuple[str, float] | None = None
    lost: Mapping[str, float] = {}


class Readers:
    """The readers of a process; some may have no consumer. Times are seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def note(self, source: str, is_made: bool) -> None:  # noqa: FBT001 - a callback
        """Note that the reader of a stream has a consumer, or lost it."""
        if is_made:
            self._since.pop(source, None)
        else:
            self._since.setdefault(source, self._clock.monotonic())

    @property
    def lost(self) -> dict[str, float]:
        """The seconds since which a reader has no consumer, by its stream."""
        now = self._clock.monotonic()
        return {source: now - since for source, since in self._since.items()}

    def are_lost_for(self, seconds: float) -> bool:
        """Return whether one has had no consumer for so long."""
        return any(lost >= seconds for lost in self.lost.values())


class Presence:
    """The keeper of the entry of one process, and reader of all entries."""

    def __init__(self, projections: Projections, clock: Clock, describe: Callable[[], Present]) -> None:
        self._projections = projections
        self._clock = clock
        self._describe = describe
        self.format = OLDEST
        """The newest format that each process reads that is present."""

    async def run(self) -> None:
        """Keep the entry until cancelled, then remove it."""
        try:
            while True:
                await self.run_once()
                await self._clock.sleep(INTERVAL_S)
        finally:
            with suppress(LogUnavailable, SequenceConflict):
                await self._projections.remove(Bucket.LEADER, process_key(self._describe().name))

    async def run_once(self) -> None:
        """Write the entry, and look whether all processes read the newest format."""
        present = self._describe()
        try:
            body = msgspec.json.encode(present)
            await self._projections.put(Bucket.LEADER, process_key(present.name), body, ttl=TTL_S)
            if FORMAT > OLDEST:
                newest = (max(one.formats, default=OLDEST) for one in await processes(self._projections))
                self.format = min(newest, default=OLDEST)
        except LogUnavailable as error:
            _log.debug("presence not shown", action="presence-not-shown", error=str(error))


async def processes(projections: Projections) -> list[Present]:
    """Return the processes that are present, by name.

    Raises:
        LogUnavailable: the server did not answer.
    """
    entries = await projections.entries(Bucket.LEADER, f"{PROCESS}.*")
    present = list[Present]()
    for _, body in sorted(entries.items()):
        with suppress(msgspec.MsgspecError):  # of another version, which reads the formats of this version
            present.append(msgspec.json.decode(body, type=Present))
    return present
