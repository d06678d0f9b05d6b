"""The verification of a backup, which needs no server."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from ....adapters.commit_stored import CommitStoredLog
from ....archive.log_archive import ArchiveDamaged
from ....archive.stream_reader import Selection
from ....services.audit import Auditor, Report
from ....services.audit.check import PATIENCE
from ....services.audit.commits import Takes, stored_log
from ....subjects import INPUT_STREAMS, INSTALLATION_KEY, Bucket
from . import folder as folders
from .backup_log import bucket_value, log_of_commits
from .folder import BackupManifest, FileRecord
from .snapshot_file import SnapshotDamaged, content

_FIELDS: Final = ("first", "last", "messages")


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a backup, and the reason why it is wrong."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification."""

    manifest: BackupManifest
    damage: tuple[Damage, ...]
    audit: Report | None
    """None: files are damaged, so that nothing was folded."""

    @property
    def is_clean(self) -> bool:
        """Whether the backup is as it was written, and its log keeps every invariant."""
        return not self.damage and self.audit is not None and self.audit.is_clean


async def verify_backup(
    folder: Path, *, patience: timedelta = PATIENCE, takes: Takes = lambda *_: True
) -> Verification:
    """Compare the files with the manifest, and audit the log, or raise `BackupUnreadable`."""
    manifest = folders.read_manifest(folder)
    damage = list(damaged_files(folder, manifest)) or list(_damaged_snapshots(folder, manifest))
    if damage:
        return Verification(manifest, tuple(damage), None)
    try:
        key = bucket_value(folder, manifest, Bucket.INSTALLATION, INSTALLATION_KEY)
        log = await log_of_commits(folder, manifest, key or b"")
        return Verification(manifest, (), await _audited(log, takes, patience, key))
    except ArchiveDamaged as error:
        return Verification(manifest, (Damage(folders.ARCHIVE, str(error)),), None)


def damaged_files(folder: Path, manifest: BackupManifest) -> Iterator[Damage]:
    """Compare the files with the manifest: presence, size and digest."""
    named = {Path(folders.MANIFEST), Path(folders.STARTED)}
    for path, record in manifest.files():
        named.add(path)
        if (reason := _difference(folder / path, record)) is not None:
            yield Damage(str(path), reason)
    present = {path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()}
    for path in sorted(present - named):
        yield Damage(str(path), "the manifest does not name it")
    required = [*map(manifest.names.stream, INPUT_STREAMS), manifest.names.commits_stream]
    required.append(manifest.names.bucket_stream(Bucket.INSTALLATION))
    for stream in required:
        if stream not in manifest.streams:
            yield Damage(folders.MANIFEST, f"it has no stream {stream}")


def _difference(path: Path, record: FileRecord) -> str | None:
    try:
        size = path.stat().st_size
        if size != record.size:
            return f"it has {size:,} bytes in place of {record.size:,}"
        return None if FileRecord.of(path) == record else "its SHA-256 differs from the manifest"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {(error.strerror or str(error)).lower()}"


def _damaged_snapshots(folder: Path, manifest: BackupManifest) -> Iterator[Damage]:
    """Read each snapshot: its format, the order of its messages, their number and range."""
    for stream, record in manifest.streams.items():
        path = folders.snapshot_path(stream)
        try:
            found = content(folder / path)
        except SnapshotDamaged as error:
            yield Damage(str(path), str(error))
            continue
        for field in _FIELDS:
            if getattr(found, field) != getattr(record, field):
                yield Damage(
                    str(path),
                    f"{field}: {getattr(found, field):,}, but the manifest says {getattr(record, field):,}",
                )


async def _audited(log: CommitStoredLog, takes: Takes, patience: timedelta, key: bytes | None) -> Report:
    auditor = Auditor(patience=patience, key=key)
    async for message in stored_log(auditor, log, Selection(), log.commits, patience=patience, takes=takes):
        for _ in auditor.read(message):
            pass
    return auditor.report()
