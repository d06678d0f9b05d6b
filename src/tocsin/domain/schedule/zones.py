"""Zones as spans of constant offset, the basis of the clock-change rules (`ojs-cron` 5.2).

A `Span` knows the wall time at which it begins, and so whether the clocks skipped wall time there (a gap) or repeated it (a fold),
and by how much: thirty minutes, two hours, a whole day. It does not matter whether a zone calls a change "daylight saving", so zones
whose winter is the exception need no special case.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = 86_400

# No two wall clocks of the same zone were ever further apart than this: clocks move by at most one date.
FARTHEST: Final = 26 * 3_600
# Spans are worked out and kept for a year or so at a time. What is kept overlaps its neighbours by two days, so that
# the clock change that an instant may have to know about, at most FARTHEST before it, is always seen as a real one.
_CHUNK: Final = 2**25
# The two changes of any zone that ever were, or are announced to be, closest together are 6.96 days apart, so that
# between two looks there is at most one.
_LOOK: Final = 6 * _DAY
_MARGIN: Final = 2 * _DAY
_FOREVER: Final = 2**62
_EARLIEST: Final = -(10**10)
_LATEST: Final = 253_370_764_800 - _CHUNK


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a zone's clocks keep one offset.

    Attributes:
        start, end: seconds since 1970 in UTC, the end exclusive.
        offset: seconds that the wall clock is ahead of UTC.
        before: the offset until `start`.
        wall: the wall time at the start.
        expected: the wall time at the start without the change: later than `wall` in a fold, earlier in a gap.
        fresh: the first wall time from the start on that the clocks have not shown before.
        wall_end: the wall time at which the span ends, exclusive.
    """

    start: int
    end: int
    offset: int
    before: int
    wall: int = field(init=False)
    expected: int = field(init=False)
    fresh: int = field(init=False)
    wall_end: int = field(init=False)

    def __post_init__(self) -> None:
        derived = {
            "wall": self.start + self.offset,
            "expected": self.start + self.before,
            "fresh": self.start + max(self.offset, self.before),
            "wall_end": self.end + self.offset,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)


class Zone:
    """The spans of one zone, computed when needed."""

    __slots__ = ("_always", "_chunks", "_data", "name")

    def __init__(self, name: str, data: tzinfo) -> None:
        self.name = name
        self._data = data
        # A zone says its offset at no time in particular only if it is the same at all times.
        offset = data.utcoffset(None)
        self._always = None if offset is None else Span(-_FOREVER, _FOREVER, offset // _SECOND, offset // _SECOND)
        self._chunks: dict[int, tuple[list[int], list[Span]]] = {}

    def span(self, instant: int) -> Span:
        """Return the span that contains an instant (seconds since 1970, UTC).

        Its ends are true clock changes or are more than FARTHEST away from the instant.
        """
        if self._always is not None:
            return self._always
        chunk = self._chunks.get(instant // _CHUNK)
        if chunk is None:
            chunk = self._chunks[instant // _CHUNK] = self._explore(instant // _CHUNK)
        starts, spans = chunk
        return spans[bisect_right(starts, instant) - 1]

    def _explore(self, number: int) -> tuple[list[int], list[Span]]:
        start, end = number * _CHUNK - _MARGIN, (number + 1) * _CHUNK + _MARGIN
        looks = [(at, self._offset(at)) for at in (*range(start, end, _LOOK), end)]
        edges = [(start, looks[0][1])]
        edges += [
            (self._change(at, offset, later), after)
            for (at, offset), (later, after) in pairwise(looks)
            if offset != after
        ]
        spans, before = list[Span](), looks[0][1]
        for (at, offset), (until, _) in zip(edges, [*edges[1:], (end, 0)], strict=True):
            spans.append(Span(at, until, offset, before))
            before = offset
        return [span.start for span in spans], spans

    def _change(self, low: int, offset: int, high: int) -> int:
        """Return the second in (low, high] from which the offset is no longer `offset`."""
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, instant: int) -> int:
        # Outside the years that both `datetime` and the zone's data can speak about, the nearest known offset holds.
        shown = (EPOCH + min(max(instant, _EARLIEST), _LATEST) * _SECOND).astimezone(self._data)
        return (shown.replace(tzinfo=UTC) - shown) // _SECOND
