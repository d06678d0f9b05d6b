"""The folder of `tocsin dev --ephemeral`: removed when that ends; where it was killed, by the next one that begins.

Whoever uses such a folder holds a lock on it, which ends with the process, whatever ends that. What nobody holds is a
remnant. POSIX only, as the embedded server is.
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
    """A folder that is nobody else's, for as long as the block lasts."""
    _remove_remnants()
    folder, lock = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_remnants() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is held, or gone meanwhile
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
            os.close(lock)  # somebody took it for a remnant, before it was locked


def _locked(folder: Path, how: int) -> int:
    """The descriptor that holds the lock of a folder.

    Raises:
        OSError: there is none.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
