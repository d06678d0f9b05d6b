"""The Python files of an application: which belong to it, and whether they changed."""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, TypeAlias

MAX_FOLDERS: Final = 1_000
"""The number of folders that are watched."""
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})
_ABSENT_INTERVAL_S: Final = 1.0
"""Seconds between two checks while no folder exists."""

Snapshot: TypeAlias = dict[Path, tuple[int, int, int]]
"""The modification time, the size and the inode of each file."""


class SourceFiles:
    """The files of an application, compared with the files at its newest import.

    Events of the file system only say when to look: so an event that is lost or comes twice changes nothing.
    """

    def __init__(self) -> None:
        self._folders: tuple[Path, ...] = ()
        self._known: Snapshot = {}
        self._begun_ns = 0

    def begin(self) -> None:
        self._begun_ns = time.time_ns()
        self._known = snapshot(self._folders)

    def add(self, folders: Iterable[Path]) -> None:
        """Watch the folders of the modules that were imported, beside the folders of earlier imports.

        A file there that was written during the import counts as changed.
        """
        added = [folder for folder in dict.fromkeys(folders) if folder not in self._folders]
        self._folders = (*self._folders, *added)[:MAX_FOLDERS]
        found = {path: state for path, state in snapshot(added).items() if state[0] < self._begun_ns}
        self._known = {**found, **self._known}

    async def changed(self) -> list[Path]:
        """Wait until files differ from the files at `begin`, and return them.

        Raises:
            OSError: the system cannot watch more folders.
        """
        while True:
            folders = await asyncio.to_thread(watched, self._folders)
            if not folders:
                await asyncio.sleep(_ABSENT_INTERVAL_S)
            elif changes := await self._changes_in(folders):
                return changes

    async def _changes_in(self, folders: Collection[Path]) -> list[Path]:
        """Return the changed files, if need be after the next event in the folders."""
        from watchfiles import awatch  # noqa: PLC0415 - in an extra

        # An event may be about a Python file or a folder.
        events = awatch(*folders, watch_filter=lambda _, path: Path(path).suffix in {"", ".py"}, recursive=False)
        async with aclosing(events):
            event = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)  # the event loop begins to watch before the comparison, so that no change is between
            try:
                if changes := await asyncio.to_thread(self._compare):
                    return changes
                with suppress(FileNotFoundError):  # a folder is gone
                    await event
            finally:
                event.cancel()
                await asyncio.wait([event])
        return await asyncio.to_thread(self._compare)

    def _compare(self) -> list[Path]:
        now = snapshot(self._folders)
        return sorted(path for path in now.keys() | self._known.keys() if now.get(path) != self._known.get(path))


def watched(folders: Iterable[Path]) -> list[Path]:
    """Return folders with their subfolders, in which a new package may appear."""
    found: dict[Path, None] = {}
    for folder in folders:
        if folder.is_dir():
            found.update(dict.fromkeys((folder, *_subfolders(folder))))
    return list(found)[:MAX_FOLDERS]


def snapshot(folders: Iterable[Path]) -> Snapshot:
    """Return the state of each Python file in folders and their subfolders."""
    found: Snapshot = {}
    for folder in watched(folders):
        with suppress(OSError):
            for path in folder.glob("*.py"):
                with suppress(OSError):  # it is gone
                    state = path.stat()
                    found[path] = (state.st_mtime_ns, state.st_size, state.st_ino)
    return found


def source_folders(root: Path, files: Iterable[str]) -> list[Path]:
    """Return the root and the folders of its files that are not installed."""
    found = {root: None}
    for file in files:
        path = Path(file).resolve()
        if is_source(path, root):
            found[path.parent] = None
    return list(found)


def is_source(path: Path, root: Path) -> bool:
    """Return whether a file is below the root, and is not an installed package."""
    return path.is_relative_to(root) and not any(
        part in _INSTALLED or part.startswith(".") for part in path.relative_to(root).parts[:-1]
    )


def relative(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    folder = Path.cwd().resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _subfolders(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            name = path.name
            if name.startswith(".") or name in _SKIPPED or not path.is_dir() or (path / "pyvenv.cfg").exists():
                continue
            yield path
