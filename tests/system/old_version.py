"""An earlier commit of this repository as programs: `python -m tests.system.old_version FOLDER [tocsin's own arguments]`.

FOLDER holds the sources. The tests' own modules are those of this checkout.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

REPOSITORY: Final = Path(__file__).parents[2]


def sources(commit: str, folder: Path) -> Path:
    """Extract the package of a commit, or skip the test where the history lacks it.

    A source distribution has no history, and a shallow clone has a part.
    """
    command = ["git", "-C", str(REPOSITORY), "archive", "--format=zip", commit, "src"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace").strip() or error
        pytest.skip(f"this needs commit {commit} in the history of a git clone that is not shallow: {said}")
    with ZipFile(BytesIO(archive)) as members:
        members.extractall(folder)
    return folder / "src"


def environment(variables: Mapping[str, str], source: Path) -> dict[str, str]:
    """Return variables with which a new Python imports an old package."""
    assert (source / "tocsin" / "__init__.py").is_file(), f"{source} has no package, so that of this checkout would run"
    return {**variables, "PYTHONPATH": f"{source}{os.pathsep}{REPOSITORY}"}


if __name__ == "__main__":
    # A forked process has this checkout's package imported already, so a new Python takes its place.
    command = [sys.executable, "-m", "tocsin", *sys.argv[2:]]
    os.execve(sys.executable, command, environment(os.environ, Path(sys.argv[1])))  # noqa: S606 - no shell is meant
