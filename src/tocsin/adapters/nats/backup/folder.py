"""The folder of a backup: a manifest, snapshots of streams, and objects of the archive.

    manifest.json                 what the folder holds, with a digest of each file
    streams/TOCSIN_COMMITS.s2     a snapshot, as nats-server made it
    archive/commits.0-….json      an object of the archive

The folder gets its name when everything in it is on the disk. It holds the installation's key, so only its owner may read it.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ....archive.log_archive import LogArchiveState
from ..client.names import Names
from .errors import BackupExists, BackupUnreadable, BackupUnwritable

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
STARTED: Final = "started.json"
"""An object that an upload stores first; a folder has none, unless it was copied from a store."""
STREAMS: Final = "streams"
ARCHIVE: Final = "archive"
_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""A name of a file: `Path` takes an absolute name for the whole path, and the manifest may be from a hostile store."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Model):
    """A file: its size in bytes and its digest."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """Read a file."""
        with path.open("rb") as file:
            return cls(sha256=file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


class StreamRecord(_Model):
    """A snapshot of a stream: its file, its sequences and its messages."""

    file: FileRecord
    first: int = Field(ge=0)
    last: int = Field(ge=0)
    messages: int = Field(ge=0)


class DurableRecord(_Model):
    """A durable, and the sequence up to which its stage had handled every message."""

    stream: str
    config: Mapping[str, Any]
    floor: int = Field(ge=0)


class BackupManifest(_Model):
    """The content of a backup."""

    tocsin: Literal["backup"] = "backup"
    format: Literal[1] = FORMAT
    version: str
    """Version of Tocsin."""
    nats_server: str = Field(pattern=r"^\d+\.\d+\.\d+$")
    """Version of the nats-server that made the snapshots."""
    layout: int
    time: datetime
    """When the backup began (UTC)."""
    installation: str
    """Public identifier of the installation."""
    root: str
    trigger_prefix: str
    public_prefix: str
    mq_prefix: str
    settings: str
    """Digest of the settings in force, without secrets."""
    streams: Mapping[str, StreamRecord]
    """By the name of the stream."""
    durables: tuple[DurableRecord, ...]
    archive: Mapping[str, Any]
    """Progress of the archive."""
    objects: Mapping[str, FileRecord]
    """Objects of the archive by name."""

    @property
    def archive_state(self) -> LogArchiveState:
        """Progress of the archive."""
        return msgspec.convert(self.archive, LogArchiveState)

    @property
    def names(self) -> Names:
        """The names on the wire."""
        return Names(self.root, self.trigger_prefix, self.public_prefix, self.mq_prefix)

    def files(self) -> Iterator[tuple[Path, FileRecord]]:
        """Yield each file, relative to the folder."""
        for stream, record in self.streams.items():
            yield snapshot_path(stream), record.file
        for name, file in self.objects.items():
            yield Path(ARCHIVE, name), file


def snapshot_path(stream: str) -> Path:
    """Return the path of a stream's snapshot, relative to the folder."""
    return Path(STREAMS, f"{stream}.s2")


def read_manifest(folder: Path) -> BackupManifest:
    """Read the manifest of a backup, or raise `BackupUnreadable`."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BackupUnreadable(f"{folder / MANIFEST}: {reason}. Name a folder of `tocsin backup create`.") from None
    try:
        manifest = BackupManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise BackupUnreadable(
            f"{folder / MANIFEST}: {field}: {first['msg'].lower()}. "
            f"This version reads backups of format {FORMAT}: use the version that made it, or another copy."
        ) from None
    for name in (*manifest.streams, *manifest.objects):
        if not _FILE.fullmatch(name):
            raise BackupUnreadable(f"{folder / MANIFEST}: {name!r} is no name of a file in the backup")
    return manifest


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder that gets the path at the end; remove it after an error."""
    if path.exists() or path.is_symlink():
        raise BackupExists(f"{path} exists. A backup never overwrites anything: name a new folder.")
    unfinished = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        for part in (unfinished, unfinished / STREAMS, unfinished / ARCHIVE):
            part.mkdir(mode=0o700)
        yield unfinished
        for part in (unfinished / STREAMS, unfinished / ARCHIVE, unfinished):
            flush(part)
        try:
            unfinished.rename(path)
        except OSError:
            raise BackupExists(f"{path} was created meanwhile. Name a new folder.") from None
        flush(path.parent)
    except TimeoutError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BackupUnwritable(
            f"{error.filename or path}: {reason}. Name a folder that you can write to, on a disk with room."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_manifest(folder: Path, manifest: BackupManifest) -> None:
    """Write the manifest, which makes a folder a backup."""
    path = folder / MANIFEST
    path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    path.chmod(0o600)
    flush(path)


def flush(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
