"""The two sides of a comparison, each in a folder of its own."""

import io
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]
EXTRAS: Final = ("server",)
"""Extras of the package that a measurement needs."""
LOCK: Final = "requirements.lock"


class SideError(Exception):
    """The reason why a side cannot be prepared."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side.

    Attributes:
        name: `base` or `new`.
        commit: what it is.
        folder: its files.
        python: the interpreter that has its requirements.
    """

    name: str
    commit: str
    folder: Path
    python: str = sys.executable

    def environment(self) -> Mapping[str, str]:
        """Return the environment for its processes."""
        return {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'src'}"}


def base(commit: str, folder: Path, *, root: Path = ROOT) -> Side:
    """Unpack a commit into a folder, and give it an interpreter.

    Raises:
        SideError: git does not know the commit, or its requirements cannot be installed.
    """
    name = _git(root, "rev-parse", "--short", "--verify", f"{commit}^{{commit}}").decode().strip()
    home = folder / "base"
    with zipfile.ZipFile(io.BytesIO(_git(root, "archive", "--format=zip", name))) as archive:
        archive.extractall(home)
    return Side("base", name, home, _interpreter(home, folder / "venv"))


def new(folder: Path, *, root: Path = ROOT) -> Side:
    """Copy the working tree, so that later edits do not change what is measured.

    Raises:
        SideError: the folder is not a git repository.
    """
    home = folder / "new"
    for name in _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0"):
        if name and (root / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, home / name)
    commit = _git(root, "rev-parse", "--short", "HEAD").decode().strip()
    changed = "with changes" if _git(root, "status", "--porcelain") else ""
    return Side("new", " ".join(filter(None, [commit, changed])), home)


def unmet(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield the requirements of a pyproject.toml that this environment does not meet."""
    table = project["project"]
    extras = table.get("optional-dependencies", {})
    lines = [*table.get("dependencies", []), *(line for extra in EXTRAS for line in extras.get(extra, []))]
    for requirement in map(Requirement, lines):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{requirement} is not installed"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement}, but {installed} is installed"


def _interpreter(home: Path, venv: Path) -> str:
    """Return an interpreter that meets the requirements of a side."""
    problems = list(unmet(tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))))
    if not problems:
        return sys.executable
    print(f"base: its own environment, because it requires {'; '.join(problems)}", flush=True)
    python = venv / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(home / LOCK)],
    ):
        try:
            subprocess.run(command, check=True)  # noqa: S603 - our own
        except subprocess.CalledProcessError as error:
            raise SideError(
                f"its environment cannot be made: {' '.join(command)} ended with {error.returncode}"
            ) from error
    return str(python)


def _git(root: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout  # noqa: S603, S607 - the user's git
    except FileNotFoundError as error:
        raise SideError("git is not installed") from error
    except subprocess.CalledProcessError as error:
        raise SideError(error.stderr.decode(errors="replace").strip() or f"git {arguments[0]} failed") from error
