"""Every command where the reader leaves, the terminal lacks characters, there is no home, or nothing can be written."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import World
from tests.system.processes import environment_of
from tests.system.running import settings
from tocsin.cli import app
from tocsin.cli.command_tree import COMMANDS, CommandGroup, Tree
from tocsin.cli.runtime.errors import Exit

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
PATH = re.compile("FILE|FOLDER|PLACE|MODULE")
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_every_command_speaks_ascii(tmp_path: Path) -> None:
    codes = _run(tmp_path, environment=ASCII)
    assert {command: code for command, code in codes.items() if code not in range(6)} == {}


@pytest.mark.parametrize("environment", [ASCII, {"LC_ALL": "C.UTF-8"}], ids=["ascii", "utf-8"])
def test_name_outside_the_locale_is_refused(environment: dict[str, str]) -> None:
    word = "nö".encode("utf-8" if environment is ASCII else "latin-1")
    command: list[str | bytes] = [
        *(sys.executable, "-m", "tocsin", "--nats", NOWHERE, "-o", "json", "jobs", "trigger"),
        word,
    ]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False, timeout=60)
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["error_code"]) == (2, "usage")
    assert "JOB" in error["message"]
    assert "LC_ALL=C.UTF-8" in error["message"]


def _calls_with_half_a_pair() -> Iterator[tuple[str, ...]]:
    """Yield a call of each command for each of its parameters that names no file."""
    word = "n\udcc3"
    yield from ((f"{option}={word}", "version") for option in ("--nats", "--server", "--token", "--root"))
    for path in _commands():
        command: Any = get_command(app)
        for name in path:
            command = command.commands[name]
        for parameter in command.params:
            metavar, option = parameter.metavar or "", parameter.opts[0]
            if not getattr(parameter, "is_flag", False) and ("JSON" in metavar or not PATH.search(metavar)):
                value = f'{{"a": "{word}"}}' if "JSON" in metavar else word
                yield (*path, f"{option}={value}" if option.startswith("-") else value)


def test_text_parameters_refuse_half_surrogate_pairs(world: World) -> None:
    calls = list(_calls_with_half_a_pair())
    assert len(calls) > 100
    answers = {call: world.call("-o", "json", *call) for call in calls}
    assert {call: answer.code for call, answer in answers.items() if answer.code != Exit.USAGE} == {}
    assert [call for call, answer in answers.items() if "Invalid value for" not in answer.error["message"]] == []


def test_name_of_a_file_may_have_any_bytes(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/n\xc3\xb6\xff.yaml"
    Path(os.fsdecode(file)).write_text("jobs: []")
    command: list[str | bytes] = [sys.executable, "-m", "tocsin", "explain", "0 5 * * *", "-f", file]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **ASCII}, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
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
    with subprocess.Popen([sys.executable, "-m", "tocsin", "run", "registrar"], env=environment, cwd=tmp_path) as stage:
        call("jobs", "apply", "-f", "jobs.yaml", "--yes")
        stage.terminate()
    said = call("jobs", "show", "greet")
    if output == "json":
        assert job["description"] in json.dumps(json.loads(said), ensure_ascii=False)
    else:
        assert "gr\\xfcn \\U0001f680" in said
