"""The command line: a module or a package for each noun, composed in `app.py`."""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Final

from .app import app

__all__ = ["app", "main"]


GC_THRESHOLD: Final = 300_000
"""Allocations before Python collects garbage. A short command makes fewer, most of them by importing.

Collections that free nothing took an eighth of the CPU of `tocsin jobs list`.
"""


# obstore completes requests in threads of Rust. Such a thread aborts the process (exit code 134) if it wants the interpreter's lock
# after the interpreter began to end, which happens in few of many ends, on a busy machine (pyo3-async-runtimes issue 40).

THREADED: Final = "obstore"
"""The module with such threads."""


@contextmanager
def program_end() -> Iterator[None]:
    """End the process with the exit code of the block, undisturbed by such threads."""
    code = 1

    def leave() -> None:
        """End at once, after the handlers that the command registered."""
        if THREADED not in sys.modules:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the reader has gone, or the stream was closed
                stream.flush()
        os._exit(code)

    atexit.register(leave)
    try:
        yield
        code = 0
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            code = request.code or 0
        raise


def main() -> None:
    """Run one command and exit: the program `tocsin`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the end
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
    gc.set_threshold(GC_THRESHOLD)  # `runtime.event_loop.serve` sets others for processes that keep running
    with program_end():
        app()
