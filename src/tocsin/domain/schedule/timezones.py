"""The zones by name, and the source of their data (`ojs-cron` 5, CRON-13 to 15).

A `Span` knows the wall time at which it begins, and so whether the clocks skipped wall time there (a gap) or repeated it (a fold),
and by how much: thirty minutes, two hours, a whole day. It does not matter whether a zone calls a change "daylight saving", so zones
whose winter is the exception need no special case.

The data comes from the `tzdata` package, not from the machine, so that every copy of a service agrees. It is read when a zone is
first used. `refresh` reads it again after an upgrade of the package, and `install` takes it from another place. Schedules look up
their zone by name each time, so that both apply immediately and without a restart.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import cached_property
from importlib.abc import Traversable
from importlib.resources import files
from itertools import pairwise
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo  # noqa: TID251 - the table of the package

from .errors import ScheduleError

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
    """The spans of one zone, computed when needed; `data` is the zone for `datetime`."""

    __slots__ = ("_always", "_chunks", "data")

    def __init__(self, data: tzinfo) -> None:
        self.data = data
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

    def showing(self, wall: int) -> Span:
        """Return the first span that shows a wall time, or the span after its gap."""
        span = self.span(wall - FARTHEST)
        while span.wall_end <= wall:
            span = self.span(span.end)
        return span

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
        shown = (EPOCH + min(max(instant, _EARLIEST), _LATEST) * _SECOND).astimezone(self.data)
        return (shown.replace(tzinfo=UTC) - shown) // _SECOND


_OFFSET: Final = re.compile(r"(UTC|GMT|Z)?\s*[+-]\s*\d{1,2}(:?\d{2})?(:?\d{2})?", re.IGNORECASE)
# IANA keeps these as names, but they are abbreviations that mean different things to different people, fixed offsets in
# disguise, or placeholders.
_ABBREVIATION: Final = re.compile(r"[A-Z]{3}([A-Z]?|\d[A-Z]{3})|GMT[+-]?0|Factory|localtime|posixrules")
_FIXED: Final = re.compile(r"Etc/GMT[+-][1-9]")
_UNAMBIGUOUS: Final = frozenset({"UTC", "GMT"})
_LONGEST: Final = 64

_INSTEAD: Final = MappingProxyType(
    {
        **dict.fromkeys(("EST", "EDT", "EST5EDT"), "America/New_York"),
        "CST": "America/Chicago (or Asia/Shanghai, or America/Havana)",
        **dict.fromkeys(("CDT", "CST6CDT"), "America/Chicago"),
        "MST": "America/Denver (or America/Phoenix, without daylight saving)",
        **dict.fromkeys(("MDT", "MST7MDT"), "America/Denver"),
        **dict.fromkeys(("PST", "PDT", "PST8PDT"), "America/Los_Angeles"),
        "AKST": "America/Anchorage",
        "HST": "Pacific/Honolulu",
        "BST": "Europe/London (or Asia/Dhaka)",
        "IST": "Asia/Kolkata (or Europe/Dublin, or Asia/Jerusalem)",
        "WET": "Europe/Lisbon",
        **dict.fromkeys(("CET", "CEST", "MET"), "Europe/Berlin"),
        **dict.fromkeys(("EET", "EEST"), "Europe/Athens"),
        "MSK": "Europe/Moscow",
        "JST": "Asia/Tokyo",
        **dict.fromkeys(("KST", "ROK"), "Asia/Seoul"),
        "PRC": "Asia/Shanghai",
        "ROC": "Asia/Taipei",
        "SGT": "Asia/Singapore",
        **dict.fromkeys(("AEST", "AEDT"), "Australia/Sydney"),
        **dict.fromkeys(("NZST", "NZDT"), "Pacific/Auckland"),
        **dict.fromkeys(("Z", "UCT", "GMT0", "GMT+0", "GMT-0"), "UTC"),
        "LOCALTIME": "the zone's own name, as in Europe/Berlin",
    }
)


class TimezoneDatabase:
    """The zones of one directory of compiled IANA data, laid out like `tzdata`.

    Args:
        root: holds the file `zones`, one name per line, and the directory `zoneinfo`.
    """

    def __init__(self, root: Traversable) -> None:
        self._root = root
        self._zones: dict[str, Zone] = {}
        self.version = _version(root)
        """The IANA release, such as `2026a`; empty if the data has none. It is read at once: an upgrade replaces the files."""

    @cached_property
    def names(self) -> frozenset[str]:
        lines = self._root.joinpath("zones").read_text(encoding="utf-8").split()
        return frozenset(name for name in lines if name in _UNAMBIGUOUS or not _ABBREVIATION.fullmatch(name))

    def zone(self, name: str) -> Zone:
        """Return the zone of an allowed name; raise ScheduleError for another name."""
        zone = self._zones.get(name)
        if zone is None:
            validate(name, self.names)
            with self._root.joinpath("zoneinfo", *name.split("/")).open("rb") as data:
                zone = self._zones[name] = Zone(ZoneInfo.from_file(data, key=name))
        return zone


def _version(root: Traversable) -> str:
    try:
        with root.joinpath("zoneinfo", "tzdata.zi").open(encoding="utf-8") as data:
            return data.readline().removeprefix("# version ").strip()
    except OSError:
        return ""


def validate(name: str, names: frozenset[str]) -> str:
    """Return the name if it is known, or raise ScheduleError with the most similar zone."""
    if name in names:
        return name
    shown = name if len(name) <= _LONGEST else name[:_LONGEST] + "…"
    if not name:
        problem = "timezone: the name is empty; allowed are IANA names such as Europe/Berlin"
    elif _OFFSET.fullmatch(name.strip()):
        problem = f"timezone: {shown} is an offset, and offsets know no daylight saving; allowed are IANA names"
    elif name.upper() in _INSTEAD or _ABBREVIATION.fullmatch(name):
        problem = f"timezone: {shown} is an abbreviation, which is ambiguous; allowed are IANA names"
    else:
        problem = f"timezone: there is no zone {shown!r}; allowed are IANA names such as Europe/Berlin"
    raise ScheduleError(
        problem, text=shown, length=len(shown), suggestion=_meant(shown.strip(), names), code="invalid-timezone"
    )


def _meant(name: str, names: frozenset[str]) -> str:
    if name.upper() in _INSTEAD:
        return _INSTEAD[name.upper()]
    if _OFFSET.search(name):
        return "the zone of the place, as in America/New_York, or UTC"
    key = name.casefold().replace(" ", "_")
    cities = {known.rpartition("/")[2].casefold(): known for known in sorted(names, reverse=True)}
    names_by_key = {known.casefold(): known for known in names}
    if key in names_by_key or key in cities:
        return names_by_key.get(key) or cities[key]
    close = get_close_matches(key, names_by_key, n=1) or get_close_matches(key, cities, n=1)
    return names_by_key.get(close[0]) or cities[close[0]] if close else ""


def zone_warnings(name: str) -> tuple[str, ...]:
    if not _FIXED.match(name):
        return ()
    return (
        f"{name} is an offset without daylight saving, and its sign is reversed: Etc/GMT+5 is five hours behind UTC",
    )


def packaged() -> TimezoneDatabase:
    """Return the `tzdata` package's database as it is on disk."""
    return TimezoneDatabase(files("tzdata"))


class _InForce:
    """The database that all schedules use: the only mutable part of the calendar."""

    database = packaged()


def timezone_database() -> TimezoneDatabase:
    return _COMPARED.get() or _InForce.database


def install(replacement: TimezoneDatabase) -> None:
    """Replace the database of every schedule, from its next query on."""
    _InForce.database = replacement


def refresh() -> TimezoneDatabase:
    """Read the `tzdata` package again after an upgrade on disk."""
    install(packaged())
    return timezone_database()


_COMPARED: Final[ContextVar[TimezoneDatabase | None]] = ContextVar("compared", default=None)
"""The database within a block of `using`, which other threads do not see."""


@contextmanager
def using(other: TimezoneDatabase) -> Iterator[None]:
    """Use another database within the block, to compare schedules."""
    token = _COMPARED.set(other)
    try:
        yield
    finally:
        _COMPARED.reset(token)


def zone(name: str) -> Zone:
    return timezone_database().zone(name)


def validate_timezone(name: str) -> str:
    """Return the name if a schedule may use it as a zone (CRON-13, CRON-14).

    Raises:
        ScheduleError: offsets, abbreviations, unknown names, and names that only look like zones (`posix/UTC`).
    """
    return validate(name, timezone_database().names)
