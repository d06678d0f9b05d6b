"""The commands of the tutorial, and of the pages that say so, print what these promise."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 90
SERVER = "first terminal"
SECOND_SERVER = "second terminal"


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block, and its expected lines."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.rstrip("\n").split("\n")
        yield command, lines


def matches(output: str, lines: list[str]) -> bool:
    """Whether the output holds the lines in this order; `…` is any text within a line."""
    printed = iter(output.splitlines())
    return all(any(line_matches(line, candidate) for candidate in printed) for line in lines)


def line_matches(line: str, printed: str) -> bool:
    parts = (re.escape(" ".join(part.split())) for part in line.split("…"))
    return re.fullmatch(".*".join(parts), " ".join(printed.split())) is not None


@contextmanager
def server(command: str, lines: list[str], folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run the first terminal's command; yield its output after the expected lines."""
    log = folder / f"terminal-{len(list(folder.glob('terminal-*')))}"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not matches(log.read_text(), lines):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def run_until(command: str, lines: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command, and repeat it until its output matches if it only reads."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and matches(done.stdout, lines):
            return
        reads = not re.search(r"\b(apply|trigger|pause)\b", command)
        assert reads, f"{command}\n{done.stdout}{done.stderr}"
        assert time.monotonic() < deadline, f"{command}\n{done.stdout}{done.stderr}"
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "least"), [("tutorial.md", 5), ("how-to/run-commands.md", 1)])
def test_page_does_what_it_says(page: str, least: int, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    titled = {title: text for kind, title, text in blocks if kind == "console" and title}
    for kind, title, text in blocks:
        if kind in {"python", "yaml"}:
            (tmp_path / title).write_text(text)
    [(command, lines)] = commands(titled[SERVER])
    with ExitStack() as running:
        printed = running.enter_context(server(command, lines, tmp_path, environment))
        exported = re.search(r"export (TOCSIN_NATS_URL)=(\S+) (TOCSIN_DATA_DIR)=(\S+)", printed)
        assert exported is not None
        url, at, data, where = exported.groups()
        environment |= {url: at, data: where}
        if SECOND_SERVER in titled:
            [(command, lines)] = commands(titled[SECOND_SERVER])
            running.enter_context(server(command, lines, tmp_path, environment))
        typed = [block for kind, title, block in blocks if kind == "console" and not title]
        assert len(typed) >= least
        for block in typed:
            for command, lines in commands(block):
                run_until(command, lines, tmp_path, environment)


def test_output_is_matched_line_by_line() -> None:
    output = "JOB     STATE\n-----\ngreet   active  @every 2s\n"
    assert matches(output, ["JOB STATE", "greet … active …2s"])
    assert matches(output, ["…"])
    assert not matches(output, ["greet … paused"])
    assert not matches(output, ["greet …", "JOB …"])
    assert not matches(output, ["JOB …active"])
