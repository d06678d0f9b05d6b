"""SIGTERM and SIGINT as requests to stop."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled(stop: Callable[[], None]) -> Iterator[None]:
    """While inside, either signal calls `stop`; after the second one they act as if nobody handled them."""
    loop = asyncio.get_running_loop()
    received = 0

    def on_signal() -> None:
        nonlocal received
        received += 1
        stop()
        if received > 1:
            _remove(loop)

    try:
        for number in STOPPING:
            loop.add_signal_handler(number, on_signal)
    except (NotImplementedError, RuntimeError, ValueError):  # no such platform, or not the main thread: none of ours
        yield
        return
    try:
        yield
    finally:
        _remove(loop)


def _remove(loop: asyncio.AbstractEventLoop) -> None:
    for number in STOPPING:
        loop.remove_signal_handler(number)
