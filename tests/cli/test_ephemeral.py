"""Folders that are removed with the process that uses them."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tocsin.cli.dev.nats_server import ephemeral_folder

USER = """
import sys
from tocsin.cli.dev.nats_server import ephemeral_folder

with ephemeral_folder() as folder:
    (folder / "nats").mkdir()
    (folder / "nats" / "stored").write_text("much")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent folder of all of them."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def user() -> tuple["subprocess.Popen[str]", Path]:
    """A process that uses one."""
    process = subprocess.Popen([sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_goes_with_the_block(place: Path) -> None:
    with ephemeral_folder() as folder:
        assert folder.parent == place
        (folder / "file").touch()
    assert list(place.iterdir()) == []


def test_leftover_folder_of_a_killed_process_is_removed(place: Path) -> None:
    killed, remnant = user()
    living, used = user()
    killed.kill()
    killed.communicate()
    assert set(place.iterdir()) == {remnant, used}
    with ephemeral_folder() as folder:
        assert set(place.iterdir()) == {used, folder}
        assert (used / "nats" / "stored").read_text() == "much"
    living.communicate()
    assert list(place.iterdir()) == []


def test_what_only_is_called_so_stays(place: Path) -> None:
    (place / "tocsin-dev-notes").write_text("mine")
    (place / "elsewhere").mkdir()
    (place / "tocsin-dev-link").symlink_to(place / "elsewhere")
    with ephemeral_folder():
        pass
    assert {path.name for path in place.iterdir()} == {"tocsin-dev-notes", "elsewhere", "tocsin-dev-link"}
