"""The command line: a package for each noun, composed in `app.py`.

runtime/   session, backend, errors and exit codes, signals
input/     values of options
output/    tables, event lines and JSON
"""

import gc
import os
import sys
from io import TextIOWrapper
from typing import Final

from .app import app
from .runtime.program_end import program_end

__all__ = ["app", "main"]


GC_THRESHOLD: Final = 300_000
"""Allocations before Python collects garbage. A short command makes fewer, most of them by importing.

Collections that free nothing took an eighth of the CPU of `tocsin jobs list`.
"""


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
