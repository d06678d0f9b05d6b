"""The log and the buckets of a backup, read from its files."""

import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, cast

from .... import subjects
from ....adapters.archived_commit_log import ArchivedCommitLog
from ....adapters.commit_stored import CommitStoredLog
from ....adapters.files.archive_store import FileArchiveStore
from ....adapters.memory.archive import InMemoryProjections
from ....archive.commit_reader import CommitReader
from ....archive.log_archive import LogArchive
from ....domain.commit import FIRST_KEY, FIRST_PARTITION, Seal
from ....ports import Extent, StoredMessage
from ....ports.commit_log import Bodies, CommitLog, StoredBody
from ....subjects import Bucket, Stream
from ..client import wire
from . import folder as folders
from .folder import BackupManifest
from .snapshot_file import Entry, entries

PORTION: Final = 1_000


class BackupLog:
    """Implement `ports.StoredLog` over the snapshots of a backup, or raise `SnapshotDamaged`."""

    def __init__(self, folder: Path, manifest: BackupManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._names = manifest.names

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:  # noqa: ARG002 - the port's parameter
        return ()

    async def extent(self, stream: Stream) -> Extent:
        record = self._manifest.streams[self._names.stream(stream)]
        return Extent(record.first, record.last, record.messages)

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        portion: list[StoredMessage] = []
        for message in self._stored(stream):
            if message.sequence > upto:
                break
            is_late = message.sequence > after if isinstance(after, int) else message.time >= after
            if is_late and (not filters or any(subjects.matches(name, message.subject) for name in filters)):
                portion.append(message)
            if len(portion) == PORTION:
                yield portion
                portion = []
        if portion:
            yield portion

    def _stored(self, stream: Stream) -> Iterator[StoredMessage]:
        path = self._folder / folders.snapshot_path(self._names.stream(stream))
        for entry in entries(path):
            subject = self._names.from_wire(entry.name)
            yield StoredMessage(stream, entry.sequence, entry.time, subject, entry.header_fields(), entry.body)


class CommitsOfBackup:
    """The messages of a log of commits in a snapshot, which is only read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:  # noqa: ARG002 - there is one
        """Yield all messages after a sequence, and stop."""
        bodies = [
            StoredBody(entry.sequence, entry.time, entry.body)
            for entry in entries(self._path)
            if entry.sequence > after
        ]
        yield Bodies(bodies, caught_up=True, upto=bodies[-1].sequence if bodies else after)


async def log_of_commits(folder: Path, manifest: BackupManifest, key: bytes) -> CommitStoredLog:
    """Return the log of commits of a backup and its inputs, archive included."""
    projections = InMemoryProjections()
    archive = LogArchive(FileArchiveStore(folder / folders.ARCHIVE), projections)
    await archive.move(manifest.archive_state, expect=0)
    path = folder / folders.snapshot_path(manifest.names.commits_stream)

    async def seal() -> Seal:
        return Seal(manifest.root, FIRST_PARTITION, {FIRST_KEY: key})

    async def newest() -> int:
        return sys.maxsize

    log = ArchivedCommitLog(cast("CommitLog", CommitsOfBackup(path)), archive)  # the archive precedes it
    commits = CommitReader(log, FIRST_PARTITION, seal, FIRST_KEY)
    return CommitStoredLog(BackupLog(folder, manifest), commits, archive, newest)


def bucket_value(folder: Path, manifest: BackupManifest, bucket: Bucket, key: str) -> bytes | None:
    """Return the value of a key; None: it is absent."""
    subject = manifest.names.key(bucket, key)
    path = folder / folders.snapshot_path(manifest.names.bucket_stream(bucket))
    newest: Entry | None = None
    for entry in entries(path):
        if entry.name == subject:
            newest = entry
    if newest is None or not {wire.KV_OPERATION, wire.MARKER_REASON}.isdisjoint(newest.header_fields()):
        return None
    return newest.body
