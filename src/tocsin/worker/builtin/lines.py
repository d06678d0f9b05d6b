"""The output of a process as lines of the execution.

A process may write faster than lines can be kept, or write no line break at all. So only the newest lines that wait are kept,
the others are counted, and a long line is cut.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from ..output import LINES_PER_ATTEMPT, AttemptOutput
from ..results import MAX_RESULT_BYTES
from ..task_logger import Level

MAX_LINE_BYTES: Final = MAX_RESULT_BYTES + 2
"""Bytes of a line that are kept, because the last line may be the result, in quotes."""
_SHOWN_LINES: Final = 10
_SHOWN: Final = 300
"""Characters of a line in an error message."""


class Lines:
    """The lines of one stream of a process."""

    def __init__(self, output: AttemptOutput, level: Level) -> None:
        """Write lines to `output` when `flush` is called."""
        self._output = output
        self._level: Level = level
        self._begun = bytearray()
        self._is_cut = False
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._shown: deque[bytes] = deque(maxlen=_SHOWN_LINES)
        self.last = b""
        """The last line that is not blank."""
        self.is_last_cut = False
        """The last line is longer than its kept part."""

    def feed(self, chunk: bytes) -> None:
        """Take a part of the output."""
        first, newline, rest = chunk.partition(b"\n")
        self._extend(first)
        if not newline:
            return
        self._end_line()
        skipped, *lines = rest.rsplit(b"\n", LINES_PER_ATTEMPT)
        if not lines:
            self._extend(skipped)
            return
        if breaks := skipped.count(b"\n"):
            self._dropped += breaks
            skipped = skipped.rpartition(b"\n")[2]
        for line in (skipped, *lines[:-1]):
            self._extend(line)
            self._end_line()
        self._extend(lines[-1])

    def close(self) -> None:
        """Take the last line, which may have no line break."""
        if self._begun:
            self._end_line()
        self.flush()

    def flush(self) -> None:
        """Pass the lines that wait to the execution."""
        self._output.drop(self._dropped)
        self._dropped = 0
        while self._waiting:
            self._output.line(self._level, self._waiting.popleft().decode(errors="replace"))

    def shown(self, redact: Callable[[str], str]) -> str:
        """Return the last lines, for an error message.

        `redact` replaces secrets before a line is cut: a part of a secret would not be found.
        """
        return "\n".join(redact(line.decode(errors="replace"))[:_SHOWN] for line in self._shown)

    def _extend(self, part: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._begun)
        self._begun += part[:room]
        self._is_cut = self._is_cut or len(part) > room

    def _end_line(self) -> None:
        line, is_cut = bytes(self._begun).rstrip(b"\r"), self._is_cut
        self._begun.clear()
        self._is_cut = False
        if len(self._waiting) >= LINES_PER_ATTEMPT:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(line)
        if line.strip():
            self._shown.append(line)
            self.last, self.is_last_cut = line, is_cut
