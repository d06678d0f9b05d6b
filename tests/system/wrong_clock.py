"""Tocsin on a machine with a wrong clock.

python -m tests.system.wrong_clock 0 120 run ticker

The first number is the offset in seconds at the start, the second the offset after SIGUSR2.
"""

import signal
import sys
from datetime import datetime, timedelta

from tocsin.adapters.system_clock import SystemClock
from tocsin.cli import main

_now = SystemClock.now


def set_clock(seconds: float) -> None:
    """Set the clock of this process."""

    def now(self: SystemClock) -> datetime:
        return _now(self) + timedelta(seconds=seconds)

    SystemClock.now = now  # type: ignore[method-assign]


if __name__ == "__main__":
    first, later = float(sys.argv.pop(1)), float(sys.argv.pop(1))
    set_clock(first)
    signal.signal(signal.SIGUSR2, lambda *_: set_clock(later))
    main()
