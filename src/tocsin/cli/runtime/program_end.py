"""The end of the program beside a library's threads.

obstore completes requests in threads of Rust. Such a thread aborts the process (exit code 134) if it wants the interpreter's lock
after the interpreter began to end, which happens in few of many ends, on a busy machine (pyo3-async-runtimes issue 40).
"""

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

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
