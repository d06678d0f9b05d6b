"""Backups of a running installation.

Snapshots of several streams cannot be of one instant, so their order makes them consistent: what says that something was
handled comes before its effects, and effects come before their causes. Each effect in a backup therefore has its cause there, and
what was handled has its effects there. A restored installation handles the rest again, as after a crash.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from ....adapters.files.archive_store import FileArchiveStore
from ....archive.archive import Archive, State
from ....archive.log_archive import LogArchive, commits_of
from ....domain.commit import FIRST_PARTITION
from ....subjects import DECISION_STREAMS, INPUT_STREAMS, LAYOUT, SERVER_STREAMS, STREAMS, Bucket, Stream
from ..admin.provision_errors import ServerTooOld
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..server.process import SENDS_MESSAGES, Version
from . import folder as folders
from .errors import BackupOvertaken, TransferFailed
from .folder import BackupManifest, DurableRecord, FileRecord, StreamRecord
from .snapshot_file import SnapshotDamaged, content
from .stream_transfer import take_snapshot

TRIES: Final = 3
_DURABLE_FIELDS: Final[tuple[str, ...]] = (
    *("durable_name", "ack_policy", "ack_wait", "max_deliver", "max_ack_pending", "max_waiting"),
    *("filter_subject", "filter_subjects"),
)


@dataclass(frozen=True, slots=True)
class BackupOrigin:
    """The installation that a backup is of."""

    version: str
    """Version of Tocsin."""
    installation: str
    """Its public identifier."""
    settings: str
    """Digest of the settings."""


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

    def __init__(self, connection: Connection, names: Names, archive: Archive, log_archive: LogArchive) -> None:
        self._connection = connection
        self._names = names
        self._archive = archive
        self._log_archive = log_archive

    async def create(self, path: Path, origin: BackupOrigin, now: datetime) -> BackupManifest:
        """Write a backup to a new folder, and return its manifest.

        Raises:
            BackupExists: the path is taken.
            BackupOvertaken: the archiver moved newer messages at each try.
            TransferFailed: a stream could not be read.
            ArchiveDamaged: an object of the archive is missing or changed.
            ServerTooOld: the server makes snapshots of another format.
        """
        require_version(self._connection)
        with folders.new_folder(path) as folder:
            for _ in range(TRIES):
                before, _ = await self._archive.state()
                durables = [durable async for durable in self._durables()]
                streams = await self._streams(folder)
                # After the streams, because what the archiver removes from them is in the archive before.
                state, objects = await self._objects(folder)
                if await self._covers(streams, state):
                    break
            else:
                raise BackupOvertaken(
                    f"the archiver moved messages that are newer than their snapshots, {TRIES} times. "
                    "Try again, or set a longer `archive.interval`."
                )
            commits = await self._log_objects(folder, streams, objects)
            manifest = BackupManifest(
                version=origin.version,
                nats_server=str(Version.of(self._connection.client)),
                layout=LAYOUT,
                time=now,
                installation=origin.installation,
                root=self._names.root,
                trigger_prefix=self._names.trigger_prefix,
                public_prefix=self._names.public_prefix,
                mq_prefix=self._names.mq_prefix,
                settings=origin.settings,
                streams=streams,
                durables=tuple(durables),
                archive=state.model_copy(update={"purged": before.purged}),  # the snapshots may hold the rest
                commits=commits,
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

    async def _objects(self, folder: Path) -> tuple[State, dict[str, FileRecord]]:
        """Copy the objects of the archive that are not in the folder yet."""
        state, _ = await self._archive.state()
        target = folder / folders.ARCHIVE
        copied = await self._archive.copy_to(FileArchiveStore(target), state)
        for name in copied:
            (target / name).chmod(0o600)
        return state, {name: FileRecord.of(target / name) for name in copied}

    async def _log_objects(
        self, folder: Path, streams: dict[str, StreamRecord], objects: dict[str, FileRecord]
    ) -> Json | None:
        """Copy the archive of commits as far as the snapshots reach; return its progress.

        A segment that reaches beyond a snapshot was written after the snapshot, which has the segment's messages.
        """
        commits = streams.get(self._names.commits_stream)
        if commits is None or self._log_archive is None:
            return None
        ends = {commits_of(FIRST_PARTITION): commits.last}
        ends |= {stream.value: streams[self._names.stream(stream)].last for stream in INPUT_STREAMS}
        state = await self._log_archive.cut(ends)
        target = folder / folders.ARCHIVE
        for name in await self._log_archive.copy_to(FileArchiveStore(target), state):
            (target / name).chmod(0o600)
            objects[name] = FileRecord.of(target / name)
        progress: Json = msgspec.to_builtins(state)
        return progress

    async def _covers(self, streams: dict[str, StreamRecord], state: State) -> bool:
        """Return whether the snapshots reach as far as the archive.

        If not, messages up to their ends may be in segments that also hold newer messages.
        """
        ends = {stream: streams[self._names.stream(stream)].last for stream in INPUT_STREAMS}
        segments = await self._archive.segments(state=state)
        return all(
            span.last <= ends.get(stream, span.last) for segment in segments for stream, span in segment.streams.items()
        )

    async def _durables(self) -> AsyncIterator[DurableRecord]:
        """Yield the durables, except those of work queues.

        A work queue holds only what was not handled.
        """
        for stream in (self._names.stream(stream) for stream in SERVER_STREAMS if stream is not Stream.MQ):
            async for info in self._consumers(stream):
                config: Json = info["config"]
                if config.get("durable_name") and config["ack_policy"] == "explicit":
                    kept: Json = {field: config[field] for field in _DURABLE_FIELDS if field in config}
                    yield DurableRecord(stream=stream, config=kept, floor=info["ack_floor"]["stream_seq"])

    async def _consumers(self, stream: str) -> AsyncIterator[Json]:
        offset = 0
        while True:
            request = json.dumps({"offset": offset}).encode()
            page = await self._connection.find(f"CONSUMER.LIST.{stream}", request, absent=wire.STREAM_NOT_FOUND)
            if page and page.get("missing"):
                raise TransferFailed(f"stream {stream}: {', '.join(page['missing'])} did not answer. Try again.")
            consumers = (page or {}).get("consumers") or []
            for consumer in consumers:
                yield consumer
            offset += len(consumers)
            if page is None or not consumers or offset >= page["total"]:
                return


def require_version(connection: Connection) -> None:
    """Check that the server makes and takes snapshots of messages.

    Raises:
        ServerTooOld: it does not.
    """
    version = Version.of(connection.client)
    if version < SENDS_MESSAGES:
        raise ServerTooOld(
            f"nats-server {version} makes snapshots of another format. Backups need {SENDS_MESSAGES} or newer.",
            version=str(version),
            needed=str(SENDS_MESSAGES),
        )
