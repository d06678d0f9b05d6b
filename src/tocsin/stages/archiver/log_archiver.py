"""Moves commits and their inputs into the archive, and removes them from their streams.

Commits leave in the order of the log, when they are old or too many. A commit stays in the stream as long as a process or a follower may need it
there: after the older of the two newest snapshots that commits name, after the place of each stage, and after the place of each follower that
moved within a day. A follower that stands still reads on in the archive. An input leaves once every stage that takes its stream is beyond it.
The newest commit never leaves, because it guards the next.
"""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ... import telemetry
from ...archive.log_archive import ArchivedMessage, Failure, LogArchiveState, Origin, Place, commits_of
from ...domain.commit import LogHead
from ...engine.commit_writer import Chain
from ...engine.fold import EVENTS
from ...engine.snapshot_rows import FoldCopy
from ...engine.stage import CommitStorage
from ...ports import Clock, Extent, LogUnavailable, OutdatedState, StoredLog, StreamPurge
from ...ports.commit_log import stored_bodies
from ...subjects import INPUT_STREAMS, STREAM_SUBJECTS, Stream

INPUTS: Final = (Stream.REPORTS, Stream.REQUESTS, Stream.INPUTS)
STANDS_STILL: Final = timedelta(hours=24)
"""The time after which a follower that does not move holds no commit."""
MAX_MESSAGES: Final = 50_000
"""The most messages of a segment."""
MAX_BYTES: Final = 33_554_432
"""The approximate size of its messages; they are held in memory meanwhile."""
SHARE: Final = 24
"""A segment waits until its first message is older than the hot window by this part of the window.

So the archive has few segments.
"""
MAX_REASON: Final = 500
"""Characters of the reason of a failure that are stored."""

_log = telemetry.get_logger("tocsin.archiver")


@dataclass(frozen=True, slots=True)
class Keeping:
    """The retention of messages.

    The streams keep messages younger than `hot_window`, unless they hold more than `max_messages`; they always keep messages
    younger than `least`. A stream of inputs counts as too full from half of `max_input_bytes` on, and the stream of programs outside from half of
    `max_outside_messages` on (-1: unlimited).
    """

    hot_window: timedelta
    max_messages: int
    max_input_bytes: int = -1
    max_outside_messages: int = -1
    least: timedelta = timedelta(minutes=2)
    output: bool = False
    """Whether lines of handlers are archived, before the server removes them from their stream."""

    def is_too_much(self, stream: Stream, held: Extent, taken: int) -> bool:
        """Return whether a stream holds too much without its taken messages."""
        remaining = held.messages - taken
        is_limited = stream in INPUT_STREAMS and self.max_input_bytes >= 0
        is_half_full = is_limited and 2 * held.size * remaining > self.max_input_bytes * held.messages
        most = self.max_outside_messages
        is_half_full = is_half_full or (stream is Stream.INPUTS and 0 <= most < 2 * remaining)
        return is_half_full or remaining > self.max_messages


class LogArchiver:
    """Archives the log of commits and its inputs."""

    def __init__(
        self,
        commits: CommitStorage,
        streams: StoredLog,
        purge: StreamPurge,
        clock: Clock,
        *,
        origin: Origin,
        keeping: Keeping,
    ) -> None:
        """`streams`: the streams of inputs, without their archive."""
        self._commits = commits
        self._streams = streams
        self._purge = purge
        self._clock = clock
        self._origin = origin
        self._keeping = keeping
        self._source = commits_of(commits.partition)
        self._purged: dict[str, int] = {}

    async def note(self, error: Exception) -> None:
        """Store the reason of a failure for `tocsin doctor`, if the log answers."""
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
        try:
            state, revision = await self._commits.archive.state()
            if state.failure is None or state.failure.reason != reason:
                since = self._clock.now() if state.failure is None else state.failure.since
                failed = msgspec.structs.replace(state, failure=Failure(since, reason))
                await self._commits.archive.move(failed, expect=revision)
        except (LogUnavailable, OutdatedState) as unstored:
            _log.info("the failure is not stored", action="archiver-waits", reason=str(unstored))

    async def run_once(self, now: datetime) -> bool:
        """Archive a segment of each source, and remove messages that no reader needs.

        Return whether there may be more to archive.

        Raises:
            SequenceConflict: another archiver was faster.
            LogUnavailable: the log did not answer.
            ArchiveDamaged: a segment cannot be read back; nothing is removed.
        """
        folding = self._commits.folding()
        if folding is None:
            return False
        fold, end, _ = await folding.copy()
        stored, revision = await self._commits.archive.state()
        state = msgspec.structs.replace(stored, places=await self._look(stored.places, fold, now), failure=None)
        state, is_more = await self._archive_commits(state, end.sequence, now)
        for stream in INPUTS:
            takers = fold.terms.keys() & self._commits.takers.get(stream, frozenset())
            taken = min(_floor(fold, stream.value, takers), await self._purge.decided(stream))
            state, has_more = await self._archive_messages(stream, taken, state, now)
            is_more = is_more or has_more
        if self._keeping.output:
            lines = await self._streams.extent(Stream.OUTPUT)
            state, has_more = await self._archive_messages(Stream.OUTPUT, lines.last, state, now)
            is_more = is_more or has_more
        if state != stored:
            await self._commits.archive.move(state, expect=revision)
        await self._remove(state, fold, now)
        return is_more

    async def _archive_commits(self, state: LogArchiveState, end: int, now: datetime) -> tuple[LogArchiveState, bool]:
        commits, after, head = self._commits, state.last(self._source), LogHead(self._commits.key)
        async for segment in commits.archive.back(self._source, state):
            head = segment.head or head
            break
        chain, segment_of, is_full = Chain(commits.seal, head), _Portion(), False
        async with aclosing(stored_bodies(commits.log, commits.partition, after=after)) as bodies:
            async for stored in bodies:
                is_crowded = end - stored.sequence >= self._keeping.max_messages
                if is_full or not self._is_due(stored.time, now, is_crowded=is_crowded):
                    return await self._write(state, segment_of, now, chain.head, is_more=is_full)
                chain.take(stored)
                segment_of.add(ArchivedMessage(stored.sequence, stored.time, stored.body), is_crowded=is_crowded)
                is_full = segment_of.is_full
        return await self._write(state, segment_of, now, chain.head, is_more=False)

    async def _archive_messages(
        self, stream: Stream, upto: int, state: LogArchiveState, now: datetime
    ) -> tuple[LogArchiveState, bool]:
        source, segment_of = stream.value, _Portion()
        extent = await self._streams.extent(stream)
        async for page in self._streams.messages(stream, after=state.last(source), upto=upto):
            for message in page:
                is_crowded = self._keeping.is_too_much(stream, extent, len(segment_of.messages))
                if segment_of.is_full or not self._is_due(message.time, now, is_crowded=is_crowded):
                    return await self._write(state, segment_of, now, None, source, is_more=segment_of.is_full)
                headers = dict(message.headers)
                archived = ArchivedMessage(message.sequence, message.time, message.body, message.subject, headers)
                segment_of.add(archived, is_crowded=is_crowded)
        return await self._write(state, segment_of, now, None, source, is_more=False)

    def _is_due(self, time: datetime, now: datetime, *, is_crowded: bool) -> bool:
        """Return whether a message leaves by its age, or because there are too many."""
        return time <= now - (self._keeping.least if is_crowded else self._keeping.hot_window)

    async def _write(
        self,
        state: LogArchiveState,
        portion: "_Portion",
        now: datetime,
        head: LogHead | None,
        source: str | None = None,
        *,
        is_more: bool,
    ) -> tuple[LogArchiveState, bool]:
        messages = portion.messages
        least = now - self._keeping.hot_window - self._keeping.hot_window / SHARE
        if not messages or not (portion.is_full or portion.is_crowded or messages[0].time <= least):
            return state, False
        written = await self._commits.archive.write(source or self._source, messages, state, self._origin, head)
        _log.info("archived", action="archived", source=source or self._source, messages=len(messages))
        return written, is_more

    async def _remove(self, state: LogArchiveState, fold: FoldCopy, now: datetime) -> None:
        if upto := await self._removable(state, fold, now):
            await self._purge_once(self._source, upto)
        for stream in INPUTS:
            if upto := state.last(stream.value):
                await self._purge_once(stream.value, upto)

    async def _purge_once(self, source: str, upto: int) -> None:
        if self._purged.get(source, 0) >= upto:
            return
        if source == self._source:
            await self._commits.log.purge(self._commits.partition, upto=upto)
        else:
            for subject in STREAM_SUBJECTS[Stream(source)]:
                await self._purge.purge(subject, upto=upto)
        self._purged[source] = upto

    async def _removable(self, state: LogArchiveState, fold: FoldCopy, now: datetime) -> int:
        """Return the sequence up to which commits may leave the stream; 0: none may."""
        before = await self._commits.snapshots.removable_upto(fold.snapshots)
        followers = [state.places[name] for name in self._commits.followers]
        held = [place.number for place in followers if now - place.since < STANDS_STILL]
        number = min([_floor(fold, EVENTS, fold.terms), *held], default=0)
        if not before:
            return 0
        async for segment in self._commits.archive.back(self._source, state):
            if segment.first <= before and segment.head is not None and segment.head.number <= number:
                return min(segment.last, before)
        return 0

    async def _look(self, places: Mapping[str, Place], fold: FoldCopy, now: datetime) -> dict[str, Place]:
        """Return the places of followers and stages, and since when each has not moved."""
        newest = {name: await number() for name, number in self._commits.followers.items()}
        floors = {stage: position.floor for (stage, source), position in fold.positions.items() if source == EVENTS}
        newest |= {f"stage {stage}": floors.get(stage, 0) for stage in {*fold.terms, *floors}}
        return {
            name: before if (before := places.get(name)) is not None and before.number == number else Place(number, now)
            for name, number in newest.items()
        }


def _floor(fold: FoldCopy, source: str, stages: Iterable[str]) -> int:
    """Return the place up to which every stage took a source.

    Each stage counts that has a position, and some that may have no position yet.
    """
    floors = {stage: position.floor for (stage, each), position in fold.positions.items() if each == source}
    return min((floors.get(stage, 0) for stage in {*floors, *stages}), default=0)


class _Portion:
    """Messages of a segment."""

    def __init__(self) -> None:
        self.messages: list[ArchivedMessage] = []
        self.is_crowded = False
        """Whether a message leaves because there are too many."""
        self._size = 0

    def add(self, message: ArchivedMessage, *, is_crowded: bool) -> None:
        self.messages.append(message)
        self._size += len(message.body)
        self.is_crowded = self.is_crowded or is_crowded

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= MAX_MESSAGES or self._size >= MAX_BYTES
