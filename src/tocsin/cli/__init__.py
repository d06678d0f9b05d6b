"""The command line: a package for each noun, composed in `app.py`.

runtime/   session, backend, errors and exit codes, signals
input/     values of options
output/    tables, event lines and JSON
"""

import gc
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
    gc.set_threshold(GC_THRESHOLD)  # `runtime.event_loop.serve` sets others for processes that keep running
    with program_end():
        app()
