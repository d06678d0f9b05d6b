"""The log of a pod as lines of the execution.

The connection to a log may break, and a node rotates its files. So each line is read with its time: after a break the log is read
from the time of the last whole line on, and what is known is left out. Later lines may have an earlier time, because the clock of a node may
be set back, and its time zone may change.
"""

import asyncio
import re
from typing import Final

from ..builtin_call import BuiltinFailure
from ..output import LINES_PER_ATTEMPT
from .cluster import FORBIDDEN, Cluster, Refusal
from .lines import MAX_LINE_BYTES, Lines

_STAMP: Final = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9:]{5})"
)
_MAX_STAMP: Final = 64
_PAUSE_S: Final = 1.0
_FAILURES: Final = 10
"""Tries that may fail after the end of the container."""
_HANGING_S: Final = 2.0
"""Seconds in which the connection of a log that grows no more closes."""
_REST_WITHIN_S: Final = 30.0
"""Seconds for the rest of a log after the end of the container."""


class PodLog:
    """The log of one container."""

    def __init__(self, cluster: Cluster, path: str, container: str, lines: Lines) -> None:
        """Pass what `path` shows on to `lines`."""
        self._cluster = cluster
        self._path = path
        self._container = container
        self._lines = lines
        self._line = bytearray()
        self._last = b""
        """The time of the last whole line."""
        self._known = b""
        """The time up to which this connection repeats known lines."""
        self.has_ended = asyncio.Event()
        """Set by the reader of the pod's status: the log grows no more."""
        self.problem: BuiltinFailure | None = None
        """The reason why the end of the log is missing."""

    async def follow(self) -> None:
        """Read the log until its end, or until it cannot be read."""
        failures = 0
        try:
            while failures < _FAILURES:
                is_last = self.has_ended.is_set()
                try:
                    await (self._read(is_last=True) if is_last else self._read_until_end())
                    failures, self.problem = 0, None
                    if is_last:
                        return
                except BuiltinFailure as failure:
                    self.problem = failure
                    if isinstance(failure, Refusal) and failure.status == FORBIDDEN:
                        return
                    failures += is_last
                await self._pause()
        finally:
            self._lines.close()

    async def _read_until_end(self) -> None:
        """Read while the log grows; a connection that hangs is left soon after the end."""
        reading = asyncio.create_task(self._read(is_last=False))
        ending = asyncio.create_task(self.has_ended.wait())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([reading], timeout=_HANGING_S)
        finally:
            ending.cancel()
            reading.cancel()
            await asyncio.gather(ending, reading, return_exceptions=True)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            raise error

    async def _read(self, *, is_last: bool) -> None:
        self._line.clear()
        self._known = self._last
        query = {"container": self._container, "timestamps": "true"}
        if not is_last:
            query["follow"] = "true"
        if self._last:
            query["sinceTime"] = self._last.decode()
        elif is_last:
            query["tailLines"] = str(LINES_PER_ATTEMPT)
        within = _REST_WITHIN_S if is_last else None
        async with self._cluster.stream(self._path, within=within, **query) as parts:
            async for part in parts:
                self._feed(part)
                self._lines.flush()
        if self._line and is_last:  # otherwise a server that stops has cut it, and the next connection has the whole
            self._end_line()

    async def _pause(self) -> None:
        if self.has_ended.is_set():
            await asyncio.sleep(_PAUSE_S)
            return
        try:
            await asyncio.wait_for(self.has_ended.wait(), _PAUSE_S)
        except TimeoutError:
            return

    def _feed(self, part: bytes) -> None:
        *ends, rest = part.split(b"\n")
        for end in ends:
            self._extend(end)
            self._end_line()
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        self._line += part[: MAX_LINE_BYTES + _MAX_STAMP - len(self._line)]

    def _end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        stamp, _, text = line.partition(b" ")
        if not _STAMP.fullmatch(stamp):
            text = line  # the node says why it has no log
        elif stamp <= self._known:
            return
        else:
            self._known, self._last = b"", stamp
        self._lines.feed(text + b"\n")
