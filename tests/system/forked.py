"""Processes forked from a Python that has imported everything, ten times faster than a new process.

Each has its own memory, session and end, including by SIGKILL. `tests/cli/test_acceptance.py` covers the start of a new Python.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

_PRELOADED: Final = "tests.system.preloaded"

_context: Final = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([_PRELOADED, __name__])


def start(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, said: Path
) -> ForkServerProcess:
    """`python -m module arguments`, which writes to the end of the file `said`."""
    process = _context.Process(target=_run, args=(module, [*arguments], {**environment}, folder, said), daemon=True)
    process.start()
    return process


def _run(module: str, arguments: list[str], environment: dict[str, str], folder: Path, said: Path) -> None:
    assert _PRELOADED in sys.modules, f"{_PRELOADED} fails to be imported, which multiprocessing does not report"
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
