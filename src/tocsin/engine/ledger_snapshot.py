"""A snapshot of the folded ledgers in a bucket, for the start of a ticker.

A ticker that reads it folds only the events after it. The snapshot is only a cache of the fold: without a usable snapshot,
a ticker folds all ledgers. It consists of parts, and of a head that makes them count:

    head                    stored last and by compare-and-set: format, sequences, and the digest of each part
    <side>.<number>         the parts; the sides `a` and `b` take turns, so that the head never names a part being written

So the bucket holds at most two snapshots. Parts that a killed writer left are overwritten by the next writer, and are
removed beyond its last part.

A reader checks three things. The format and version are its own. Each part has its digest. The stream still has the newest
event that the snapshot includes, at its sequence, with its subject and time. A stream only grows, so every older event is
then the event that was folded. A stream that was created again, restored from a backup, or that lost its newest messages
has another event there, or no event.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final, Literal

import msgspec

from .. import subjects, telemetry
from ..domain.ledger import Ledgers
from ..domain.ledger import snapshot as parts
from ..domain.ledger.snapshot import UnreadableSnapshot
from ..ports import Batch, Clock, EventLog, Heading, Projections
from ..subjects import LAYOUT, Bucket

HEAD: Final = "head"
"""The key of the head."""
CHECK_INTERVAL_S: Final = 10.0
"""How often a ticker checks whether a new snapshot is due."""
ROWS_AT_ONCE: Final = 250
"""Ledgers that are written before other tasks run."""
POLL_INTERVAL_S: Final = 0.1
POLLS: Final = 300
"""How often the writer looks whether the reader of the ledgers has followed it, before it gives up."""

Side = Literal["a", "b"]

_log = telemetry.get_logger("tocsin.snapshot")


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits for writing and reading snapshots."""

    min_jobs: int = 10_000
    """Fewer ledgers are folded within a second, without a snapshot."""
    min_tail: int = 10_000
    """Messages after the snapshot, from which the next is written; from 80,000 jobs on, an eighth of their number."""
    max_tail: int = 100_000
    """Messages after the snapshot beyond which folding from zero costs less, besides one for each job."""
    interval_s: float = 600.0
    """The least time between two snapshots of one process."""
    part_bytes: int = 262_144
    """The approximate size of a part."""
    pause_s: float = 0.02
    """The pause after each part, for other tasks and the server."""


DEFAULT_POLICY: Final = Policy()


class _Newest(msgspec.Struct, frozen=True):
    """The newest event that a snapshot includes."""

    subject: str
    sequence: int
    time: datetime


class _Head(msgspec.Struct, frozen=True):
    format: str
    side: Side
    sequence: int
    """The sequence after which the ledgers are to be followed."""
    newest: _Newest
    jobs: int
    digests: tuple[str, ...]
    """The SHA-256 of each part."""


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a follower in the ledgers."""

    upto: int
    """Every event up to this sequence is folded."""
    newest: Heading
    """The newest event that the follower received."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Ledgers from a snapshot."""

    ledgers: Ledgers
    position: Position


class LedgerSnapshots:
    """Reads and writes the snapshot of one installation."""

    def __init__(
        self, log: EventLog, projections: Projections, clock: Clock, *, version: str, policy: Policy = DEFAULT_POLICY
    ) -> None:
        """`version` is that of this program, which reads no snapshot of another version."""
        self._log = log
        self._projections = projections
        self._clock = clock
        self._policy = policy
        self._format = f"{version}/{LAYOUT}/{parts.FORMAT}"
        self._bad_head: int | None = None
        """The revision of a head whose snapshot could not be used, or whose parts this process may have overwritten."""
        self._next_at = float("-inf")
        self.position: Position | None = None
        """The place of this process in the ledgers; None: no event is folded."""

    async def load(self) -> Restored | None:
        """Return the ledgers of the snapshot; None: all ledgers must be folded."""
        revision = 0
        try:
            stored = await self._projections.get(Bucket.SNAPSHOTS, HEAD)
            if stored is None:
                return None
            revision = stored[1]
            restored = await self._load(stored[0])
        except Exception as error:  # noqa: BLE001 - a snapshot is a cache, and no error of it may stop a ticker
            is_expected = isinstance(error, UnreadableSnapshot)
            _log.warning(
                "snapshot of the ledgers ignored; folding all events",
                action="snapshot-ignored",
                reason=str(error) if is_expected else repr(error),
            )
            self._bad_head = revision
            return None
        self.position = restored.position
        _log.info(
            "snapshot of the ledgers read",
            action="snapshot-read",
            jobs=len(restored.ledgers),
            upto=restored.position.upto,
        )
        return restored

    def follow(self, batch: Batch) -> None:
        """Note that the events of a batch are folded."""
        newest = None if self.position is None else self.position.newest
        if batch.messages and (newest is None or batch.messages[-1].sequence > newest.sequence):
            last = batch.messages[-1]
            newest = Heading(last.subject, last.sequence, last.time)
        if newest is not None:
            self.position = Position(batch.upto, newest)

    async def keep(self, ledgers: Callable[[], Ledgers], may_write: Callable[[], bool]) -> None:
        """Write a snapshot from time to time, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_INTERVAL_S)
            try:
                await self.save_if_due(ledgers(), may_write)
            except Exception as error:  # noqa: BLE001 - a snapshot is a cache, and no error of it may stop a ticker
                _log.warning("snapshot of the ledgers not written", action="snapshot-failed", error=repr(error))

    async def save_if_due(self, ledgers: Ledgers, may_write: Callable[[], bool]) -> bool:
        """Write a snapshot if one is due; return whether it was written.

        It is due if no snapshot is usable, or if many messages were stored since. The ledgers may change meanwhile. The work ends as soon as `may_write` returns False.
        """
        start = self.position
        if start is None or not may_write() or len(ledgers) < self._policy.min_jobs:
            return False
        if self._clock.monotonic() < self._next_at:
            return False
        stored = await self._projections.get(Bucket.SNAPSHOTS, HEAD)
        head, revision = (None, 0) if stored is None else (self._readable(stored[0]), stored[1])
        is_usable = head is not None and revision != self._bad_head
        if head is not None and is_usable and head.sequence <= start.upto < head.sequence + self._tail(len(ledgers)):
            return False
        self._bad_head = revision  # if a lagging replica answered, this writes over the parts of the newest head
        self._next_at = self._clock.monotonic() + self._policy.interval_s
        side: Side = "b" if head is not None and head.side == "a" else "a"
        written = await self._write(ledgers, side, start, may_write)
        if written is None:
            return False
        await self._projections.put(Bucket.SNAPSHOTS, HEAD, msgspec.json.encode(written), expect=revision)
        _log.info(
            "snapshot of the ledgers written",
            action="snapshot-written",
            jobs=written.jobs,
            parts=len(written.digests),
            upto=written.sequence,
        )
        await self._remove_rest(side, len(written.digests))
        return True

    def _tail(self, jobs: int) -> int:
        return max(self._policy.min_tail, jobs // 8)

    async def _load(self, body: bytes) -> Restored:
        head = self._readable(body)
        if head is None:
            raise UnreadableSnapshot("another version wrote it, or it is damaged")
        await self._check(head)
        ledgers = Ledgers()
        following = self._part(head, 0)
        try:
            for number, digest in enumerate(head.digests):
                part = await following
                following = self._part(head, number + 1)  # it arrives while this part is decoded
                if part is None or sha256(part).hexdigest() != digest:
                    raise UnreadableSnapshot(f"part {number} is missing or has another content")
                parts.restore(part, ledgers, upto=head.newest.sequence)
                await asyncio.sleep(0)
        finally:
            following.cancel()
        if len(ledgers) != head.jobs:
            raise UnreadableSnapshot(f"it has {len(ledgers)} jobs instead of {head.jobs}")
        newest = Heading(head.newest.subject, head.newest.sequence, head.newest.time)
        return Restored(ledgers, Position(head.sequence, newest))

    def _readable(self, body: bytes) -> _Head | None:
        """Return the head in an entry; None: another version wrote it, or it is damaged."""
        try:
            head = msgspec.json.decode(body, type=_Head)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return head if head.format == self._format else None

    def _part(self, head: _Head, number: int) -> "asyncio.Task[bytes | None]":
        return asyncio.create_task(self._get_part(head, number))

    async def _get_part(self, head: _Head, number: int) -> bytes | None:
        if number >= len(head.digests):
            return None
        stored = await self._projections.get(Bucket.SNAPSHOTS, _key(head.side, number))
        return None if stored is None else stored[0]

    async def _check(self, head: _Head) -> None:
        """Check that the snapshot is of this stream, and not too old."""
        last = await self._log.tail(subjects.ledger(subjects.ANY))
        if last < head.newest.sequence:
            raise UnreadableSnapshot(f"it ends at sequence {head.newest.sequence}, and the ledgers at {last}")
        if last - head.sequence > self._policy.max_tail + head.jobs:
            raise UnreadableSnapshot(f"{last - head.sequence} messages were stored since")
        newest = await self._log.get(head.newest.subject, head.newest.sequence)
        if newest is None or (newest.subject, newest.time) != (head.newest.subject, head.newest.time):
            raise UnreadableSnapshot(f"the ledger has another event, or none, at sequence {head.newest.sequence}")

    async def _write(
        self, ledgers: Ledgers, side: Side, start: Position, may_write: Callable[[], bool]
    ) -> _Head | None:
        """Write all parts and return their head; None: this process may not write any more.

        Each row includes every event of its job up to `start.upto`, and perhaps later events up to the row's sequence.
        """
        builder, newest, digests, jobs = parts.PartBuilder(), 0, list[str](), 0
        for jobs, job in enumerate(list(ledgers), 1):
            builder.add(ledgers, job)
            if builder.size >= self._policy.part_bytes:
                newest = max(newest, builder.newest)
                digests.append(await self._put_part(side, len(digests), builder.encode()))
                builder = parts.PartBuilder()
                await self._clock.sleep(self._policy.pause_s)
                if not may_write():
                    return None
            elif jobs % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if builder.size:
            newest = max(newest, builder.newest)
            digests.append(await self._put_part(side, len(digests), builder.encode()))
        # The newest event of all rows must be known with its time. This process may have stored it just now.
        for _ in range(POLLS):
            current = (self.position or start).newest
            if not may_write():
                return None
            if current.sequence >= newest:
                event = _Newest(current.subject, current.sequence, current.time)
                return _Head(self._format, side, start.upto, event, jobs, tuple(digests))
            await self._clock.sleep(POLL_INTERVAL_S)
        return None

    async def _put_part(self, side: Side, number: int, body: bytes) -> str:
        await self._projections.put(Bucket.SNAPSHOTS, _key(side, number), body)
        return sha256(body).hexdigest()

    async def _remove_rest(self, side: Side, number: int) -> None:
        """Remove the parts from `number` on, the last first.

        So a kill leaves no gap before the rest, and the next writer finds all of it.
        """
        end = number
        while await self._projections.get(Bucket.SNAPSHOTS, _key(side, end)) is not None:
            end += 1
        for rest in range(end - 1, number - 1, -1):
            await self._projections.remove(Bucket.SNAPSHOTS, _key(side, rest))


def _key(side: Side, number: int) -> str:
    return f"{side}.{number}"
