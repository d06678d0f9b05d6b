"""The limits of reads of the streams of inputs.

Reads are at most so far ahead of the taken inputs, and go once to the ends of the streams when a term begins.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from ..domain.commit import Position
from ..subjects import Stream

MAX_INPUTS: Final = 65_536
"""Inputs of a stream that are read ahead of the floor."""
MAX_BYTES: Final = 67_108_864
"""Bytes of their bodies."""
MAX_RANGES: Final = 2_048
"""Ranges above the floor of a position."""
MAX_MORE_RANGES: Final = 512
"""Ranges that a commit adds at most."""


class Intake:
    """The places up to which a process has read its streams of inputs."""

    def __init__(self, floor: Callable[[Stream], int], streams: Iterable[Stream] = Stream) -> None:
        """`floor` returns the sequence of a stream up to which its inputs are taken."""
        self._floor = floor
        self.begun = {stream: asyncio.Event() for stream in sorted(streams)}
        """Set for each stream that is read: a standby reads nothing before it leads."""
        self._ahead: dict[Stream, deque[tuple[int, int, int]]] = {}
        """The batches that are ahead of the floor, by stream: the last sequence, the number of inputs, and their bytes."""
        self._inputs: Counter[Stream] = Counter()
        self._bytes: Counter[Stream] = Counter()
        self.read_upto: dict[Stream, int] = {}
        self._ends: dict[Stream, int] = {}
        self._freed = asyncio.Event()

    def note(self, stream: Stream, sequence: int, inputs: int, size: int) -> None:
        """Note a batch of inputs up to a sequence. `size`: the bytes of their bodies."""
        self._ahead.setdefault(stream, deque()).append((sequence, inputs, size))
        self._inputs[stream] += inputs
        self._bytes[stream] += size

    def note_read(self, stream: Stream, upto: int) -> None:
        """Note that the messages up to a sequence were read, also messages without a stage."""
        self.read_upto[stream] = max(upto, self.read_upto.get(stream, 0))

    def free(self) -> None:
        """Let go of the taken inputs: positions moved."""
        for stream, ahead in self._ahead.items():
            floor = self._floor(stream) if ahead else 0
            while ahead and ahead[0][0] <= floor:
                _, inputs, size = ahead.popleft()
                self._inputs[stream] -= inputs
                self._bytes[stream] -= size
        self._freed.set()

    def has_room(self, stream: Stream) -> bool:
        """Return whether more of a stream may be read."""
        return self._inputs[stream] < MAX_INPUTS and self._bytes[stream] < MAX_BYTES

    async def room(self, stream: Stream) -> None:
        """Wait until more of a stream may be read."""
        while not self.has_room(stream):
            self._freed.clear()
            await self._freed.wait()

    def read_to(self, ends: dict[Stream, int]) -> None:
        """Have streams read to the ends that they have now, before older requests are overtaken."""
        self._ends = ends

    @property
    def is_reading(self) -> bool:
        """Return whether a stream is not read to the end that it had.

        A stream at its limit counts as read.
        """
        begun = ((stream, end) for stream, end in self._ends.items() if self.begun[stream].is_set())
        return any(self.read_upto.get(stream, 0) < end and self.has_room(stream) for stream, end in begun)


def is_crowded(position: Position) -> bool:
    """Return whether a position has so many ranges that the oldest inputs are decided first."""
    return len(position.above) > MAX_RANGES - MAX_MORE_RANGES
