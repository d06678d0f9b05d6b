"""Reads from a stream's leader that are no older than the messages received.

All replicas store what was committed, each at its own pace. A consumer is served by one of them, and may bring a message
before the leader has stored it. A decision on that message must not rest on what the leader answers until then: the leader
does not find the message itself, nor others before it. A new leader has stored everything that was committed before it answers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from .... import telemetry
from ....ports import LogUnavailable
from ....subjects import Stream

PATIENCE_S: Final = 5.0
"""Seconds for which a read waits for a leader. Three nodes on a busy machine were up to four seconds apart."""
MAX_LAG_S: Final = 60.0
"""Seconds after which a leader without the messages is believed: the stream may be another of the same name."""
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25

_log = telemetry.get_logger("tocsin.nats")


class ReceivedMarks:
    """The last sequence of each stream that this process received, from any replica."""

    def __init__(self) -> None:
        self._marks = dict.fromkeys(Stream, 0)

    def __getitem__(self, stream: Stream) -> int:
        """Return the mark of a stream."""
        return self._marks[stream]

    def note(self, stream: Stream, sequence: int) -> None:
        """Note that the message of a sequence was received."""
        self._marks[stream] = max(self._marks[stream], sequence)

    def lower(self, stream: Stream, sequence: int) -> None:
        """Set the mark of a stream whose leader does not have the messages."""
        self._marks[stream] = sequence


class LeaderLag:
    """Compares the leaders of the streams with what this process received."""

    def __init__(
        self,
        marks: ReceivedMarks,
        read_end: Callable[[Stream], Awaitable[int]],
        *,
        patience: float = PATIENCE_S,
        limit: float = MAX_LAG_S,
    ) -> None:
        """Read the last sequence of a stream from its leader with `read_end`.

        `patience`: seconds of one wait. `limit`: seconds after which a leader without the messages is believed.
        """
        self._marks = marks
        self._read_end = read_end
        self._patience = patience
        self._limit = limit
        self._reached = dict.fromkeys(Stream, 0)
        """The last sequence that each leader is known to have stored."""
        self._late_since: dict[Stream, float] = {}
        """The loop's time since which a leader is late."""

    async def await_leader(self, stream: Stream, *, stored: int) -> None:
        """Wait until the leader has stored what this process received.

        `stored` is the last sequence for which the leader confirmed an append of this process.

        Raises:
            LogUnavailable: the leader did not store it in time, or did not answer.
        """
        if self._marks[stream] > max(self._reached[stream], stored):
            await self.end(stream)
        else:
            self._late_since.pop(stream, None)

    async def end(self, stream: Stream) -> int:
        """Return the end of a stream after its leader has stored what was received.

        Raises:
            LogUnavailable: the leader did not store it in time, or did not answer.
        """
        loop = asyncio.get_running_loop()
        received, begun, pause = self._marks[stream], loop.time(), _FIRST_PAUSE_S
        while (end := await self._read_end(stream)) < received:
            now = loop.time()
            is_late_too_long = now - self._late_since.setdefault(stream, now) >= self._limit
            if is_late_too_long or now - begun >= self._patience:
                if is_late_too_long:
                    self._marks.lower(stream, end)
                raise LogUnavailable(f"{stream}: message {received:,} was received, and the leader ends at {end:,}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._reached[stream] = end
        if self._late_since.pop(stream, None) is not None:
            waited = round(loop.time() - begun, 3)
            _log.debug("leader was late", action="leader-late", stream=stream, received=received, waited=waited)
        return end
