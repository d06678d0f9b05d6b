"""The temporary folder of `tocsin dev --ephemeral`.

It is removed at the end of the process, or, after a crash, by the next `tocsin dev --ephemeral`. The process that uses a
folder holds a lock on it, which the system releases when that process ends; an unlocked folder is a remnant. POSIX only,
like the embedded server.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "tocsin-dev-"


@contextmanager
def ephemeral_folder() -> Iterator[Path]:
    """Create a private folder that exists until the block ends."""
    _remove_remnants()
    folder, lock = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_remnants() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process holds it, or it is gone
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _made() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):
            lock = _locked(folder, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)  # another process removed it before it was locked


def _locked(folder: Path, how: int) -> int:
    """Lock a folder and return the descriptor that holds the lock.

    Raises:
        OSError: the folder is gone, or another process holds its lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
