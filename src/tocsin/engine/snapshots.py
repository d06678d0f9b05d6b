"""Snapshots of the fold, from which a process begins.

After a purge they are the state on this side of the archive, so their format is documented, and the next version reads it. A snapshot is in
the bucket `snapshots`: a head, and parts of about 256 KiB. A part is rows of one kind, a line each (`snapshot_rows`); the head is JSON:

    format    1
    log       the place in the log: sequence of the message, number of the event, digest and time of the commit, id of the key
    start     an earlier place, after which are all events that a stage has not taken
    kinds     by kind of row: the number of rows, and the sum of their digests modulo 2^128
    parts     the kind and the BLAKE2b-256 of each part; without a kind, it continues the part before
    needed    the definitions that were needed when all were looked at (`departures`)
    size      the bytes of all rows

The event `log.snapshot` names the place, the digest of the head, and the digests of the kinds. A snapshot is taken only if a genuine commit after its
place has this event: the chain of the commits begins at the place, so a forged place has no genuine commit after it. The newest two
snapshots stay; a third place is for the next.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from .. import telemetry
from ..domain.commit import LogHead
from ..domain.errors import TocsinError
from ..domain.log_events import LogEvent, NamedSnapshot
from ..ports import Clock, Projections
from ..subjects import Bucket
from .fold import Fold
from .snapshot_rows import FoldBuilder, FoldCopy, lines

FORMAT: Final = 1
PART_BYTES: Final = 262_144
PIECE_BYTES: Final = 524_288
"""The most bytes of a part. A longer row goes on in the next parts: a row may have more bytes than a message may have."""
CONTINUED: Final = ""
KEPT: Final = 2
"""Snapshots that stay."""
SLOTS: Final = KEPT + 1
LINES_AT_ONCE: Final = 200
"""Rows that are written or read before other tasks run."""
LEAST_INTERVAL: Final = timedelta(minutes=10)
"""The time after which a snapshot is written if anything changed."""
LEAST_TAIL_BYTES: Final = 1_048_576
"""The bytes of the log that are read as fast as a snapshot."""
CHECK_INTERVAL_S: Final = 10.0
PARTS: Final = "fold.>"
"""The keys of heads and parts."""

_log = telemetry.get_logger("tocsin.snapshots")


class UnreadableSnapshot(TocsinError):
    """A snapshot is damaged, or of an unknown format."""

    code = "snapshot-unreadable"


class KindHead(msgspec.Struct, frozen=True):
    """The rows of a kind: their number, and their digest (32 hexadecimal digits)."""

    rows: int
    digest: str


class SnapshotHead(msgspec.Struct, frozen=True):
    """The head of a snapshot."""

    format: int
    log: LogHead
    start: LogHead
    kinds: dict[str, KindHead]
    parts: tuple[tuple[str, str], ...]
    needed: int
    size: int


class Place(NamedTuple):
    """A snapshot that is not read yet."""

    slot: int
    head: SnapshotHead
    digest: str
    """The digest by which a commit names it."""


class Loaded(NamedTuple):
    """A fold from a snapshot, which counts once a genuine commit names its digest."""

    fold: Fold
    head: LogHead
    """The place of the snapshot in the log."""
    start: LogHead
    """The place at which its reader begins. Commits up to the snapshot's place only have events for stages to take."""
    digest: str


Name = Callable[[NamedSnapshot], Awaitable[None]]
"""Has an event of the log itself stored."""


FoldPlace: TypeAlias = tuple[FoldCopy, LogHead, LogHead]
"""A copy of a fold, its place in the log, and an earlier place (`Loaded.start`)."""


class Folding(Protocol):
    """The loop that folds the log, and appends to it (`commit_loop.CommitLoop`)."""

    @property
    def log_bytes(self) -> int:
        """The bytes of the messages of the log that it read."""

    @property
    def head(self) -> LogHead:
        """The place up to which the loop read the log."""

    async def copy(self) -> FoldPlace:
        """Return the fold between two commits, its place, and an earlier place (`Loaded.start`)."""

    def leads(self, stage: str) -> bool:
        """Return whether the process decides for a stage."""

    def note(self, by: str, event: LogEvent) -> "asyncio.Future[None]":
        """Have an event of the log itself stored."""


class _Written(NamedTuple):
    """The newest snapshot."""

    number: int
    size: int
    log_bytes: int
    """The bytes of the log up to it, as this process counts them."""
    at: datetime


class _Sums:
    """The digests of rows, in any order."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, kind: str, line: bytes) -> None:
        rows, total = self._sums.get(kind, (0, 0))
        hashed = int.from_bytes(blake2b(line, digest_size=16).digest(), "big")
        self._sums[kind] = rows + 1, (total + hashed) % 2**128

    def heads(self) -> dict[str, KindHead]:
        return {kind: KindHead(rows, f"{total:032x}") for kind, (rows, total) in sorted(self._sums.items())}


class Snapshots:
    """Writes and reads the snapshots of one partition."""

    def __init__(self, projections: Projections, key: bytes) -> None:
        """`key`: the key of the fold."""
        self._projections = projections
        self._key = key
        self._newest: _Written | None = None

    async def keep(self, folding: Folding, clock: Clock, may_write: Callable[[], bool] = lambda: True) -> None:
        """Write a snapshot from time to time until cancelled."""
        while True:
            await clock.sleep(CHECK_INTERVAL_S)
            try:
                if may_write():
                    await self.save_if_due(folding, clock.now())
            except Exception as error:  # noqa: BLE001 - the process goes on without it
                _log.warning("snapshot not written", action="snapshot-failed", error=repr(error))

    async def save_if_due(self, folding: Folding, now: datetime) -> bool:
        """Write a snapshot after enough growth, or after ten minutes with changes.

        The growth is enough if the log has grown by the size of the newest snapshot.
        """
        if (newest := self._newest) is None:
            heads = sorted((head.log.number, head.size, head.log.at) for _, head in await self._heads())
            number, size, at = heads[-1] if heads else (0, 0, LogHead("").at)
            newest = self._newest = _Written(number, size, 0, at)
        tail = folding.log_bytes - newest.log_bytes
        has_changed = folding.head.number > newest.number + 1  # the event that names the newest is no change
        if not has_changed or (tail < max(newest.size, LEAST_TAIL_BYTES) and now - newest.at < LEAST_INTERVAL):
            return False
        copy, log, start = await folding.copy()
        log_bytes = folding.log_bytes
        size = await self.save(copy, log, start, partial(folding.note, "snapshots"))
        self._newest = _Written(log.number, size, log_bytes, now)
        return True

    async def save(self, copy: FoldCopy, log: LogHead, start: LogHead, name: Name) -> int:
        """Write a snapshot of a fold, store its event, and return its size.

        The event names the snapshot; the size is in bytes. `start`: as in `Loaded`.
        """
        slot = await self._slot(copy.snapshots)
        await self._projections.remove(Bucket.SNAPSHOTS, _head_key(slot))
        sums, parts = _Sums(), list[tuple[str, str]]()
        open_: dict[str, list[bytes]] = {}
        sizes: dict[str, int] = {}
        size = 0
        for count, (kind, line) in enumerate(lines(copy), 1):
            sums.add(kind, line)
            open_.setdefault(kind, []).append(line)
            sizes[kind] = sizes.get(kind, 0) + len(line) + 1
            size += len(line) + 1
            if sizes[kind] >= PART_BYTES:
                await self._put_part(slot, parts, kind, open_.pop(kind))
                sizes[kind] = 0
            elif count % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        for kind, rest in open_.items():
            await self._put_part(slot, parts, kind, rest)
        head = SnapshotHead(FORMAT, log, start, sums.heads(), tuple(parts), copy.needed_definitions, size)
        body = _encode(head)
        await self._projections.put(Bucket.SNAPSHOTS, _head_key(slot), body)
        await name(NamedSnapshot(log, _digest(body), {kind: each.digest for kind, each in head.kinds.items()}))
        _log.info("snapshot written", action="snapshot-written", number=log.number, parts=len(parts))
        return size

    async def _put_part(self, slot: int, parts: list[tuple[str, str]], kind: str, part: list[bytes]) -> None:
        body = b"\n".join(part)
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await self._projections.put(Bucket.SNAPSHOTS, _part_key(slot, len(parts)), piece)
            parts.append((CONTINUED if start else kind, _digest(piece)))

    async def _slot(self, kept: Sequence[str]) -> int:
        """Return a place without a snapshot that stays, the oldest of these.

        Two processes that wrote at the same number have the same snapshot in two places: one of them stays.
        """
        heads = dict(await self._heads())
        stay = {_digest(_encode(head)): slot for slot, head in heads.items()}
        free = set(range(SLOTS)) - {stay[digest] for digest in kept if digest in stay}
        return min(free, key=lambda slot: (heads[slot].log.number if slot in heads else -1, slot))

    async def candidates(self, stages: frozenset[str] = frozenset()) -> AsyncGenerator[Loaded, None]:
        """Yield the folds of whole snapshots, the newest first, for a process with some stages."""
        for place in await self.places():
            log = place.head.log
            try:
                fold = await self._fold(place, stages)
            except Exception as error:  # noqa: BLE001 - a wrong snapshot is skipped, and an older snapshot used
                _log.warning("snapshot refused", action="snapshot-refused", number=log.number, error=str(error))
                continue
            yield Loaded(fold, log, place.head.start, place.digest)

    async def places(self) -> list[Place]:
        """Return the places of all snapshots, the newest first."""
        heads = sorted(await self._heads(), key=lambda entry: -entry[1].log.number)
        return [Place(slot, head, _digest(_encode(head))) for slot, head in heads]

    async def rows(self, place: Place, part: int) -> list[bytes]:
        """Return the rows of a part with its continuations (`SnapshotHead.parts`), as JSON.

        Raises:
            UnreadableSnapshot: the part is damaged, or of another snapshot now.
        """
        slot, head, pieces = place.slot, place.head, list[bytes]()
        for piece, (kind, digest) in enumerate(head.parts[part:], part):
            if pieces and kind != CONTINUED:
                break
            stored = await self._projections.get(Bucket.SNAPSHOTS, _part_key(slot, piece))
            if stored is None or _digest(stored[0]) != digest:
                raise UnreadableSnapshot(f"part {piece} of the snapshot at {head.log.number:,} is missing or damaged")
            pieces.append(stored[0])
        return b"".join(pieces).split(b"\n")

    async def newest(self) -> int:
        """Return the greatest number with a snapshot, named or not; 0: no snapshot."""
        return max((head.log.number for _, head in await self._heads()), default=0)

    async def removable_upto(self, named: Sequence[str]) -> int:
        """Return the sequence up to which no process needs the commits to begin.

        0: commits do not name two snapshots.

        `named`: the snapshots that the fold knows (`Fold.snapshots`). Followers may need more commits, and the archive must have them first.
        """
        starts = [place.head.start.sequence for place in await self.places() if place.digest in named]
        return min(starts) if len(starts) == KEPT else 0

    async def _heads(self) -> list[tuple[int, SnapshotHead]]:
        heads = list[tuple[int, SnapshotHead]]()
        for slot in range(SLOTS):
            stored = await self._projections.get(Bucket.SNAPSHOTS, _head_key(slot))
            if stored is None:
                continue
            try:
                head = _decode_head(stored[0])
            except msgspec.MsgspecError as error:
                _log.warning("snapshot refused", action="snapshot-refused", slot=slot, error=str(error))
                continue
            if head.format > FORMAT:
                _log.warning("snapshot of a newer version", action="snapshot-refused", slot=slot, format=head.format)
            else:
                heads.append((slot, head))
        return heads

    async def _fold(self, place: Place, stages: frozenset[str]) -> Fold:
        head, builder, sums, count = place.head, FoldBuilder(self._key, stages), _Sums(), 0
        for number, (kind, _) in enumerate(head.parts):
            if kind == CONTINUED:
                continue
            for line in await self.rows(place, number):
                sums.add(kind, line)
                builder.add(kind, line)
                count += 1
                if count % LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
        if sums.heads() != head.kinds:
            raise UnreadableSnapshot(f"the snapshot at {head.log.number:,} has other rows than its head says")
        return builder.finish(head.log.at, head.needed)


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=32).hexdigest()


def _head_key(slot: int) -> str:
    return f"fold.{slot}.head"


def _part_key(slot: int, number: int) -> str:
    return f"fold.{slot}.{number}"


_encode: Final = msgspec.json.Encoder().encode
_decode_head: Final = msgspec.json.Decoder(SnapshotHead).decode
