"""Processes forked from a Python that has imported everything, ten times faster than a new process.

Each has its own memory, session and end, including by SIGKILL; functions of `atexit` do not run. `tests/cli/test_acceptance.py` covers
the start and the end of a new Python.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from typing_extensions import override

_PRELOADED: Final = "tests.system.preloaded"

_context: Final = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([_PRELOADED, __name__])
_looking: Final = threading.Lock()
"""Held while exit codes are read. A start reads those of all processes, and of two readers one would get 255."""


class Forked(ForkServerProcess):
    """A process that several threads may start and wait for."""

    @override
    def start(self) -> None:
        with _looking:
            super().start()

    @override
    def join(self, timeout: float | None = None) -> None:
        if wait([self.sentinel], timeout):
            with _looking:
                super().join()

    @override
    def is_alive(self) -> bool:
        with _looking:
            return super().is_alive()

    @property
    @override
    def exitcode(self) -> int | None:
        with _looking:
            return super().exitcode


def start(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    said: Path,
    errors: Path | None = None,
) -> Forked:
    """`python -m module arguments`, which writes to the end of the file `said`, or its errors to another file."""
    parameters = (module, [*arguments], {**environment}, folder, said, errors or said)
    process = Forked(target=_run, args=parameters, daemon=True)
    process.start()
    return process


def call(
    arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, patience_s: float
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m tocsin arguments` to its end."""
    with tempfile.TemporaryDirectory() as at:
        said, errors = Path(at, "said"), Path(at, "errors")
        said.touch()
        errors.touch()
        process = start("tocsin", arguments, environment=environment, folder=folder, said=said, errors=errors)
        process.join(patience_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([*arguments], patience_s, said.read_text(), errors.read_text())
        return subprocess.CompletedProcess(arguments, process.exitcode, said.read_text(), errors.read_text())


def _run(
    module: str, arguments: list[str], environment: dict[str, str], folder: Path, said: Path, errors: Path
) -> None:
    assert _PRELOADED in sys.modules, f"{_PRELOADED} fails to be imported, which multiprocessing does not report"
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((said, sys.stdout), (errors, sys.stderr)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, stream.fileno())
        os.close(file)
    sys.argv = [module, *arguments]
    sys.path.insert(0, str(folder))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
