"""Backups outside this machine: in S3, or in an object store of NATS.

The objects have the names of the files in a backup's folder. `started.json` comes first, under a condition, so one upload
goes to one place. The manifest comes last, so an upload that was interrupted leaves no backup.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol
from uuid import uuid4

from ....domain.errors import TocsinError
from . import folder as folders
from .errors import BackupExists, BackupUnreadable
from .folder import BackupManifest
from .verification import Damage, Verification

STORED: Final = "stored.json"
"""A file beside those of a backup, with the manifest that a store has."""
REMOVAL_S: Final = 30.0
"""Seconds in which the objects of an upload that failed are removed."""


class BackupStore(Protocol):
    """Objects below a prefix. Methods raise `StoreUnavailable` if the store does not answer, or refuses."""

    async def create(self, name: str, body: bytes) -> bool:
        """Store a small object unless its name is taken; return whether it was stored."""

    async def upload(self, name: str, path: Path) -> None:
        """Store a file, of which only a part is in memory."""

    async def download(self, name: str, path: Path) -> bool:
        """Write an object to a file; return whether it exists."""

    def names(self) -> AsyncIterator[str]:
        """Yield the names of all objects."""

    async def remove(self, name: str) -> None:
        """Remove an object."""


class Upload:
    """An upload that began."""

    def __init__(self, store: BackupStore) -> None:
        self._store = store
        self.names: list[str] = []
        """Names of the objects that this upload stored, or began to store."""

    async def begin(self, now: datetime) -> None:
        """Take the place, or raise `BackupExists`.

        A store whose first answer was lost says to the second request that the object exists, so it has an id of this upload.
        """
        body = json.dumps({"time": now.isoformat(), "id": uuid4().hex}).encode()
        try:
            is_stored = await self._store.create(folders.STARTED, body) or await self._has_started(body)
        except BaseException:
            with suppress(TocsinError, TimeoutError):
                async with asyncio.timeout(REMOVAL_S):
                    if await self._has_started(body):
                        self.names.append(folders.STARTED)
            raise
        if not is_stored:
            raise self._taken()
        self.names.append(folders.STARTED)
        async for name in self._store.names():
            if name != folders.STARTED:
                raise self._taken()

    async def _has_started(self, body: bytes) -> bool:
        with TemporaryDirectory() as folder:
            path = Path(folder) / folders.STARTED
            return await self._store.download(folders.STARTED, path) and path.read_bytes() == body

    async def finish(self, folder: Path, manifest: BackupManifest) -> None:
        """Upload the files of a finished folder, the manifest last.

        A store whose first answer was lost says to the second request that the manifest exists.
        """
        for path, _ in manifest.files():
            name = path.as_posix()
            self.names.append(name)
            await self._store.upload(name, folder / path)
        body = (folder / folders.MANIFEST).read_bytes()
        try:
            is_stored = await self._store.create(folders.MANIFEST, body)
        except BaseException:
            self.names.append(folders.MANIFEST)
            raise
        if not is_stored:
            found = folder / STORED
            await self._store.download(folders.MANIFEST, found)
            if not found.exists() or found.read_bytes() != body:
                raise self._taken()

    async def undo(self) -> None:
        """Remove the stored objects, as far as the store permits it."""
        for name in reversed(self.names):
            await self._store.remove(name)

    def _taken(self) -> BackupExists:
        return BackupExists(
            f"{self._store} has objects, or an upload began there. A backup never overwrites anything: name a new place."
        )


@asynccontextmanager
async def uploading(store: BackupStore, now: datetime) -> AsyncIterator[Upload]:
    """Take a place for a backup; after an error remove the stored objects."""
    upload = Upload(store)
    try:
        await upload.begin(now)
        yield upload
    except BaseException:
        with suppress(TocsinError, TimeoutError):
            async with asyncio.timeout(REMOVAL_S):
                await upload.undo()
        raise


async def download_backup(store: BackupStore, folder: Path) -> BackupManifest:
    """Write the stored files of a backup to an empty folder, or raise `BackupUnreadable`."""
    for part in (folders.STREAMS, folders.ARCHIVE):
        (folder / part).mkdir(mode=0o700)
    if not await store.download(folders.MANIFEST, folder / folders.MANIFEST):
        raise BackupUnreadable(f"{store} has no {folders.MANIFEST}: there is no backup, or its upload did not end.")
    manifest = folders.read_manifest(folder)
    for path, _ in manifest.files():
        await store.download(path.as_posix(), folder / path)
    return manifest


async def with_unnamed(store: BackupStore, verification: Verification) -> Verification:
    """Add the objects that the manifest does not name to the damage."""
    named = {path.as_posix() for path, _ in verification.manifest.files()} | {folders.MANIFEST, folders.STARTED}
    unnamed = sorted([name async for name in store.names() if name not in named])
    damage = (Damage(name, "the manifest does not name it") for name in unnamed)
    return replace(verification, damage=(*verification.damage, *damage))
