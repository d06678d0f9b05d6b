"""Archive objects stored as files in a folder."""

import asyncio
import os
import secrets
from contextlib import suppress
from pathlib import Path

from ...ports import ArchiveUnavailable


class FileArchiveStore:
    """Implement `ports.ArchiveStore`. An object is flushed to the disk before it gets its name."""

    def __init__(self, folder: Path) -> None:
        """Store objects in `folder`, which `put` creates if it is missing."""
        self._folder = folder

    async def put(self, name: str, body: bytes) -> None:
        """Store an object, unless an object of that name exists."""
        try:
            await asyncio.to_thread(self._write, name, body)
        except OSError as error:
            raise self._unavailable("written", error) from error

    async def get(self, name: str) -> bytes | None:
        """Return an object, or None if it does not exist."""
        try:
            return await asyncio.to_thread((self._folder / name).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable("read", error) from error

    def _unavailable(self, verb: str, error: OSError) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"the archive: the folder {self._folder} cannot be {verb}: {error.strerror or error}")

    def _write(self, name: str, body: bytes) -> None:
        path = self._folder / name
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):  # such as a file system without rights
            state = self._folder.stat()
            if state.st_uid == os.geteuid() and not state.st_mode & 0o1000:  # /tmp stays as it is
                self._folder.chmod(state.st_mode & 0o7700)
        if path.exists():
            return
        unfinished = self._folder / f".{name}.{secrets.token_hex(4)}"
        try:
            with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
