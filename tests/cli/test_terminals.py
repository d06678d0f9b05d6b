"""Every command where the reader leaves, the terminal lacks characters, there is no home, or nothing can be written."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import environment_of
from tests.system.running import settings
from tocsin.cli.command_tree import COMMANDS, CommandGroup, Tree

EACH = """
import os, sys
import rich.console, rich.markdown, rich.table, typer.rich_utils
from tocsin import cli
from tocsin.cli.runtime import error_report, session
for command in {commands!a}:
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        sys.argv = ["tocsin", *command]
        try:
            cli.main()
        except SystemExit as end:
            try:
                sys.stdout.flush()
            except OSError:
                pass
            os._exit(end.code or 0)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *command, file=sys.__stderr__, flush=True)
"""
"""A program that runs each command in a fork, and writes its exit code."""
NOWHERE = "nats://127.0.0.1:9"
LOCAL = [
    ["--version"],
    ["explain", "0 5 * * *"],
    ["explain", "t\u00e4glich"],
    ["config", "show"],
    ["jobs", "list"],
    ["no-such"],
]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
HOMELESS = """
import os, pwd
def absent(uid):
    raise KeyError(uid)
os.environ.pop("HOME", None)
pwd.getpwuid = absent
"""


def _commands(tree: Tree = COMMANDS, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, entry in tree.items():
        yield (*before, name)
        if isinstance(entry, CommandGroup):
            yield from _commands(entry.commands, (*before, name))


def _run(
    folder: Path, *, closed: bool = False, environment: dict[str, str] | None = None, prelude: str = ""
) -> dict[str, int]:
    """Run the help of every command, and what needs no server; return the exit codes."""
    commands = [*([*each, "--help"] for each in _commands()), *LOCAL]
    reader, writer = os.pipe()
    if closed:
        os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", prelude + EACH.format(commands=[["--nats", NOWHERE, *each] for each in commands])],
        stdin=subprocess.DEVNULL,
        stdout=writer if closed else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        check=False,
        timeout=400,
    )
    os.close(writer)
    if not closed:
        os.close(reader)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert "Traceback" not in said
    assert "Error:" not in said  # of an exception that no part of the program expected
    codes = [line.partition(" ") for line in said.splitlines() if line.partition(" ")[0].lstrip("-").isdigit()]
    assert len(codes) == len(commands)
    return {command: int(code) for code, _, command in codes}


def test_closed_pipe_ends_every_command_quietly(tmp_path: Path) -> None:
    codes = _run(tmp_path, closed=True)
    assert {command: code for command, code in codes.items() if code not in range(6)} == {}


def test_closed_pipe_is_no_error_for_users() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tocsin", "explain", "0 5 * * *"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""


def test_every_command_speaks_ascii(tmp_path: Path) -> None:
    codes = _run(tmp_path, environment=ASCII)
    assert {command: code for command, code in codes.items() if code not in range(6)} == {}


def test_every_command_runs_without_home_and_disk() -> None:
    """The user has no entry in the password file, and the folder takes no file."""
    codes = _run(Path("/proc"), prelude=HOMELESS)
    assert {command: code for command, code in codes.items() if code not in range(6)} == {}


@pytest.mark.parametrize("output", ["table", "json"])
def test_texts_of_users_reach_terminals_without_their_signs(output: str, nats_url: str, tmp_path: Path) -> None:
    job: dict[str, Any] = {"name": "greet", "function": "a", "description": "gr\u00fcn \U0001f680", "tags": ["\u00fc"]}
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": [job]}, ensure_ascii=False), "utf-8")
    environment = {**environment_of(settings(nats_url, tmp_path)), **ASCII}

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "tocsin", "-o", output, *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("ascii")

    call("init")
    call("jobs", "apply", "-f", "jobs.yaml", "--yes")
    said = call("jobs", "show", "greet")
    if output == "json":
        assert job["description"] in json.dumps(json.loads(said), ensure_ascii=False)
    else:
        assert "gr\\xfcn \\U0001f680" in said
