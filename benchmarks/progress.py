"""Progress of work that takes minutes, on standard error."""

import sys
import time
from typing import Final

EVERY: Final = 10.0
"""Seconds between two lines."""


class Progress:
    """Print now and then how many items are done, and the current rate."""

    def __init__(self, what: str, total: int) -> None:
        """Name the work, for example `W5: executions, recorded`."""
        self._what = what
        self._total = total
        self._began = self._last = time.perf_counter()
        self._done = 0

    def at(self, done: int) -> None:
        """Report the number of finished items."""
        now = time.perf_counter()
        if now - self._last < EVERY and done < self._total:
            return
        rate = (done - self._done) / (now - self._last)
        share = done / self._total
        line = (
            f"{self._what}: {done:,} of {self._total:,} ({share:.0%}), {now - self._began:,.0f} s, {rate:,.0f} a second"
        )
        print(line, file=sys.stderr, flush=True)
        self._last, self._done = now, done
