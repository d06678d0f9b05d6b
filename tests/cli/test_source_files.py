"""The files of an application: which are watched, and which changes are seen."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.cli.dev import source_files
from tocsin.cli.dev.source_files import SourceFiles, source_folders, watched


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for file in ("app.py", "shop/__init__.py", "shop/prices.py", "notes.txt"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("1\n")
    return tmp_path


def begun(project: Path) -> SourceFiles:
    files = SourceFiles()
    files.begin()
    files.add(source_folders(project, [str(project / "shop" / "prices.py")]))
    files.begin()
    return files


def write_same_size(path: Path) -> None:
    state = path.stat()
    path.write_text("2\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))


def replace(path: Path) -> None:
    other = path.with_name("4913")
    other.write_text("1\n")
    other.rename(path)


def swap_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("old"))
    path.parent.mkdir()
    path.write_text("3\n")


CHANGES: list[Callable[[Path], object]] = [write_same_size, replace, Path.unlink, swap_folder]


@pytest.mark.parametrize("change", CHANGES)
async def test_change_is_seen(project: Path, change: Callable[[Path], object]) -> None:
    files, changed = begun(project), project / "shop" / "prices.py"
    seeing = asyncio.create_task(files.changed())
    await asyncio.sleep(0)
    change(changed)
    assert changed in await seeing
    assert changed in await files.changed()  # until the next import begins


async def test_change_before_the_watch_is_seen(project: Path) -> None:
    files = begun(project)
    (project / "shop" / "new.py").touch()
    assert await files.changed() == [project / "shop" / "new.py"]


async def test_file_written_during_its_import_is_seen(project: Path) -> None:
    files = SourceFiles()
    files.begin()
    (project / "app.py").write_text("2\n")
    os.utime(project / "app.py", ns=(files._begun_ns, files._begun_ns))
    os.utime(project / "shop" / "__init__.py", ns=(1, 1))
    os.utime(project / "shop" / "prices.py", ns=(1, 1))
    files.add([project])
    assert await files.changed() == [project / "app.py"]


async def test_new_package_is_seen(project: Path) -> None:
    files = begun(project)
    seeing = asyncio.create_task(files.changed())
    await asyncio.sleep(0)
    (project / "more").mkdir()
    (project / "more" / "__init__.py").touch()
    assert await seeing == [project / "more" / "__init__.py"]


async def test_other_files_change_nothing(project: Path) -> None:
    files = begun(project)
    (project / "notes.txt").write_text("2\n")
    (project / "shop" / "prices.pyc").touch()
    assert files._compare() == []


def test_installed_and_hidden_packages_are_not_watched(project: Path) -> None:
    environment, hidden = project / "venv", project / ".venv" / "lib"
    installed = environment / "lib" / "site-packages" / "fastapi" / "__init__.py"
    for folder in (installed.parent, hidden, project / "node_modules", project / "__pycache__"):
        folder.mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    outside = str(project.parent / "other" / "module.py")
    folders = source_folders(project, [str(installed), str(hidden / "x.py"), outside, str(project / "app.py")])
    assert folders == [project]
    assert watched(folders) == [project, project / "shop"]


def test_number_of_watched_folders_is_limited(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_FOLDERS", 3)
    for number in range(5):
        (project / f"p{number}").mkdir()
    assert watched([project]) == [project, project / "p0", project / "p1"]
