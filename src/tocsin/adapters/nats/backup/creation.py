"""Backups of a running installation.

Snapshots of several streams cannot be of one instant, so their order makes them consistent: what says that something was
handled comes before its effects, and effects come before their causes. Each effect in a backup therefore has its cause there, and
what was handled has its effects there. A restored installation handles the rest again, as after a crash.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from ....adapters.files.archive_store import FileArchiveStore
from ....archive.log_archive import LogArchive, LogArchiveState, commits_of
from ....domain.commit import FIRST_PARTITION
from ....subjects import DECISION_STREAMS, INPUT_STREAMS, LAYOUT, SERVER_STREAMS, STREAMS, Bucket, Stream
from ..admin.provision_errors import ServerTooOld
from ..client.connection import Connection, Json
from ..client.names import Names
from ..server.process import SENDS_MESSAGES, Version
from . import folder as folders
from .errors import TransferFailed
from .folder import BackupManifest, DurableRecord, FileRecord, StreamRecord
from .snapshot_file import SnapshotDamaged, content
from .stream_transfer import take_snapshot

_DURABLE_FIELDS: Final[tuple[str, ...]] = (
    *("durable_name", "ack_policy", "ack_wait", "max_deliver", "max_ack_pending", "max_waiting"),
    *("filter_subject", "filter_subjects"),
)


def snapshot_order(names: Names) -> tuple[str, ...]:
    """Return the streams in the order of their snapshots.

    First work queues and buckets, which say what was handled. Then the streams of effects, and then those of their causes. Leases belong to
    processes.
    """
    queues = (names.webhook_stream, names.stream(Stream.MQ))
    buckets = [names.bucket_stream(bucket) for bucket in Bucket if bucket is not Bucket.LEADER]
    # Commits come after the public events, and before the inputs that they take.
    first = map(names.stream, (Stream.NOTIFICATIONS, Stream.LOG))
    causes = (names.stream(stream) for stream in reversed(STREAMS) if stream not in DECISION_STREAMS)
    effects = (*first, names.commits_stream, *causes)
    return (*queues, *buckets, *effects, names.stream(Stream.OUTPUT), names.stream(Stream.PROGRESS))


class BackupWriter:
    """Writes backups of one installation."""

    def __init__(self, connection: Connection, names: Names, archive: LogArchive) -> None:
        self._connection = connection
        self._names = names
        self._archive = archive

    async def create(
        self, path: Path, now: datetime, *, version: str, installation: str, settings: str
    ) -> BackupManifest:
        """Write a backup to a new folder, and return its manifest.

        `version`: of Tocsin. `installation`: its public identifier. `settings`: their digest.

        Raises:
            BackupError: the path is taken, or a stream could not be read.
            ArchiveDamaged: an object of the archive is missing or changed.
            ServerTooOld: the server makes snapshots of another format.
        """
        require_version(self._connection)
        with folders.new_folder(path) as folder:
            durables = [durable async for durable in self._durables()]
            streams = await self._streams(folder)
            # After the streams, because what the archiver removes from them is in the archive before.
            state, objects = await self._objects(folder, streams)
            manifest = BackupManifest(
                version=version,
                nats_server=str(Version.of(self._connection.client)),
                layout=LAYOUT,
                time=now,
                installation=installation,
                root=self._names.root,
                trigger_prefix=self._names.trigger_prefix,
                public_prefix=self._names.public_prefix,
                mq_prefix=self._names.mq_prefix,
                settings=settings,
                streams=streams,
                durables=tuple(durables),
                archive=msgspec.to_builtins(state),
                objects=objects,
            )
            folders.write_manifest(folder, manifest)
        return manifest

    async def _streams(self, folder: Path) -> dict[str, StreamRecord]:
        records: dict[str, StreamRecord] = {}
        for stream in snapshot_order(self._names):
            path = folder / folders.snapshot_path(stream)
            with path.open("wb") as file:
                path.chmod(0o600)
                state = await take_snapshot(self._connection, stream, file)
            if state is None:
                path.unlink()
                continue
            folders.flush(path)
            try:
                found = await asyncio.to_thread(content, path)
            except SnapshotDamaged as error:
                raise TransferFailed(f"stream {stream}: the snapshot cannot be read: {error}. Try again.") from error
            records[stream] = StreamRecord(
                file=await asyncio.to_thread(FileRecord.of, path),
                first=found.first,
                last=found.last,
                messages=found.messages,
            )
        return records

    async def _objects(
        self, folder: Path, streams: dict[str, StreamRecord]
    ) -> tuple[LogArchiveState, dict[str, FileRecord]]:
        """Copy the archive as far as the snapshots reach; return its progress and the objects.

        A segment that reaches beyond a snapshot was written after the snapshot, which has the segment's messages.
        """
        ends = {stream.value: streams[self._names.stream(stream)].last for stream in (*INPUT_STREAMS, Stream.OUTPUT)}
        ends[commits_of(FIRST_PARTITION)] = streams[self._names.commits_stream].last
        state = await self._archive.cut(ends)
        target = folder / folders.ARCHIVE
        copied = await self._archive.copy_to(FileArchiveStore(target), state)
        for name in copied:
            (target / name).chmod(0o600)
        return state, {name: FileRecord.of(target / name) for name in copied}

    async def _durables(self) -> AsyncIterator[DurableRecord]:
        """Yield the durables, except of work queues, which hold unhandled messages alone."""
        for stream in (self._names.stream(stream) for stream in SERVER_STREAMS if stream is not Stream.MQ):
            async for page in self._connection.pages(f"CONSUMER.LIST.{stream}"):
                if page.get("missing"):
                    raise TransferFailed(f"stream {stream}: {', '.join(page['missing'])} did not answer. Try again.")
                for info in page.get("consumers") or ():
                    config: Json = info["config"]
                    if config.get("durable_name") and config["ack_policy"] == "explicit":
                        kept: Json = {field: config[field] for field in _DURABLE_FIELDS if field in config}
                        yield DurableRecord(stream=stream, config=kept, floor=info["ack_floor"]["stream_seq"])


def require_version(connection: Connection) -> None:
    """Raise `ServerTooOld` unless the server makes and takes snapshots of messages."""
    version = Version.of(connection.client)
    if version < SENDS_MESSAGES:
        raise ServerTooOld(
            f"nats-server {version} makes snapshots of another format. Backups need {SENDS_MESSAGES} or newer.",
            version=str(version),
            needed=str(SENDS_MESSAGES),
        )
