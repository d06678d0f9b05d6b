"""The restoration of a backup into a NATS that has no stream of the installation.

Restored streams continue far after their last message (`gap`). So no sequence that the lost installation gave to an event after the backup
names another event: not a fencing token, not a claim that a worker still holds, not a position that a reader stored.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from ....adapters.files.archive_store import FileArchiveStore
from ....archive.log_archive import LogArchive
from ....ports import ArchiveStore, Projections
from ....services.repair import gap
from ....subjects import INPUT_STREAMS, INSTALLATION_KEY, LAYOUT, LOG_ARCHIVE, Bucket, Stream
from ..admin.desired_state import all_streams
from ..admin.provision_errors import ServerTooOld
from ..admin.resources import create_durable, ensure_stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.jetstream_wait import retry_until_available
from ..client.names import Names
from ..server.process import Version
from . import folder as folders
from .backup_log import bucket_value
from .creation import require_version
from .errors import BackupDamaged, BackupOfOtherNames, BackupUnreadable, InstallationNotEmpty, TransferFailed
from .folder import BackupManifest, DurableRecord
from .snapshot_file import continued
from .stream_transfer import PIECE, restore_snapshot
from .verification import damaged_files

_WITHOUT_LIFETIMES: Final = (Stream.LOG, *sorted(INPUT_STREAMS))
"""Streams whose messages neither expire nor fire, so that all of them must be there after the restore."""


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The target of a restore, as the settings describe it."""

    configs: Mapping[str, Json]
    """The configuration of each stream by name, with its number of replicas."""
    archive: ArchiveStore
    durables: frozenset[tuple[str, str]]
    """Stream and name of each durable of the stages."""
    initialize: Callable[[], Awaitable[object]]
    """Creates what the backup does not have."""
    end_log: Callable[[bytes], Awaitable[object]]
    """Stores the commit that ends the lost tail of the log, with the installation's key."""


class BackupReader:
    """Restores backups into one NATS."""

    def __init__(self, connection: Connection, names: Names, projections: Projections) -> None:
        self._connection = connection
        self._names = names
        self._projections = projections

    async def restore(self, folder: Path, target: RestoreTarget) -> BackupManifest:
        """Restore a backup, and return its manifest, or raise `BackupError` or `ServerTooOld`.

        The installation's key comes last of the streams, so that no stage starts on a part of a backup.
        """
        manifest = folders.read_manifest(folder)
        self._require_same(manifest)
        if unknown := manifest.streams.keys() - target.configs.keys():
            raise BackupUnreadable(f"{folder}: its manifest names unknown streams: {', '.join(sorted(unknown))}")
        require_version(self._connection)
        self._require_version_of(manifest)
        await self._require_empty()
        for damage in damaged_files(folder, manifest):
            raise BackupDamaged(
                f"{folder / damage.file}: {damage.reason}. Run `tocsin backup verify {folder}`, and restore another copy."
            )
        await self._restore_streams(folder, manifest, target)
        return manifest

    async def _restore_streams(self, folder: Path, manifest: BackupManifest, target: RestoreTarget) -> None:
        key = self._names.bucket_stream(Bucket.INSTALLATION)
        for stream in sorted(manifest.streams, key=lambda name: name == key):
            if stream == key:
                await ensure_stream(self._connection, target.configs[self._names.archive_stream], None, is_plan=False)
                await self._restore_archive(folder, manifest, target.archive)
                report_key = await asyncio.to_thread(
                    bucket_value, folder, manifest, Bucket.INSTALLATION, INSTALLATION_KEY
                )
                await target.end_log(report_key or b"")  # numbers begin above the lost numbers
                for durable in manifest.durables:
                    if self._is_wanted(durable, target):
                        await create_durable(
                            self._connection, durable.stream, dict(durable.config), after=durable.floor
                        )
            await self._restore_stream(folder, manifest, stream, target.configs[stream])
        await target.initialize()

    async def _restore_stream(self, folder: Path, manifest: BackupManifest, stream: str, config: Json) -> None:
        record = manifest.streams[stream]
        is_log = stream in {self._names.commits_stream, *map(self._names.stream, Stream)}
        last = record.last + gap(datetime.now(UTC) - manifest.time) if is_log else None
        with (folder / folders.snapshot_path(stream)).open("rb") as file:
            state = {"first_seq": record.first, "last_seq": record.last, "messages": record.messages}
            restored = await restore_snapshot(self._connection, config, state, continued(file, PIECE, last=last))
        kept = {self._names.commits_stream, *map(self._names.stream, _WITHOUT_LIFETIMES)}
        if stream in kept and restored["messages"] != record.messages:
            raise TransferFailed(
                f"stream {stream}: the server stored {restored['messages']:,} of {record.messages:,} messages. "
                "Compare its limits with the settings, remove the restored streams and try again."
            )

    async def _restore_archive(self, folder: Path, manifest: BackupManifest, store: ArchiveStore) -> None:
        copied = LogArchive(FileArchiveStore(folder / folders.ARCHIVE), self._projections)
        await copied.copy_to(store, manifest.archive_state)
        # The first read of a new stream may come to a replica that does not have it yet.
        entry = await retry_until_available(partial(self._projections.get, Bucket.CURSORS, LOG_ARCHIVE))
        archive = LogArchive(store, self._projections)
        await archive.move(manifest.archive_state, expect=0 if entry is None else entry[1])

    def _is_wanted(self, durable: DurableRecord, target: RestoreTarget) -> bool:
        name: str = durable.config["durable_name"]
        return (durable.stream, name) in target.durables or name.startswith(self._names.trigger_durable(""))

    def _require_same(self, manifest: BackupManifest) -> None:
        ours, theirs = self._names, manifest.names
        for field in ("root", "trigger_prefix", "public_prefix", "mq_prefix"):
            if getattr(ours, field) != getattr(theirs, field):
                raise BackupOfOtherNames(
                    f"the backup has {field} {getattr(theirs, field)!r}, but the settings have {getattr(ours, field)!r}. "
                    "Set the value of the backup: stored subjects contain it."
                )
        if manifest.layout != LAYOUT:
            raise BackupOfOtherNames(
                f"the backup has streams of layout {manifest.layout}, and this version needs {LAYOUT}. "
                f"Restore it with version {manifest.version} of Tocsin."
            )

    def _require_version_of(self, manifest: BackupManifest) -> None:
        version = Version.of(self._connection.client)
        if version < Version.parse(manifest.nats_server):
            raise ServerTooOld(
                f"nats-server {version} is older than {manifest.nats_server}, which made the backup. Upgrade nats-server.",
                version=str(version),
                needed=manifest.nats_server,
            )

    async def _require_empty(self) -> None:
        found: dict[str, int] = {}
        for stream in all_streams(self._names):
            info = await self._connection.find(f"STREAM.INFO.{stream}", absent=wire.STREAM_NOT_FOUND, by_leader=False)
            if info is not None:
                found[stream] = info["state"]["messages"]
        if found:
            listed = ", ".join(f"{stream} ({messages:,} messages)" for stream, messages in found.items())
            raise InstallationNotEmpty(
                f"the target has streams of this installation: {listed}. A backup is restored only where there are none: "
                "use an empty NATS without `tocsin init`, or remove these streams if nothing in them is needed.",
                streams=tuple(found),
            )
