"""The zones by name, and the source of their data (`ojs-cron` 5, CRON-13 to 15).

The data comes from the `tzdata` package, not from the machine, so that every copy of a service agrees. It is read when a zone is
first used. `refresh` reads it again after an upgrade of the package, and `install` takes it from another place. Schedules look up
their zone by name each time, so that both apply immediately and without a restart.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property
from importlib.abc import Traversable
from importlib.resources import files
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo

from .errors import ScheduleError
from .zones import Zone

_OFFSET: Final = re.compile(r"(UTC|GMT|Z)?\s*[+-]\s*\d{1,2}(:?\d{2})?(:?\d{2})?", re.IGNORECASE)
# IANA keeps these as names, but they are abbreviations that mean different things to different people, fixed offsets in
# disguise, or placeholders.
_ABBREVIATION: Final = re.compile(r"[A-Z]{3}([A-Z]?|\d[A-Z]{3})|GMT[+-]?0|Factory|localtime|posixrules")
_FIXED: Final = re.compile(r"Etc/GMT[+-][1-9]")
_UNAMBIGUOUS: Final = frozenset({"UTC", "GMT"})
_LONGEST: Final = 64

_INSTEAD: Final = MappingProxyType(
    {
        "EST": "America/New_York",
        "EDT": "America/New_York",
        "EST5EDT": "America/New_York",
        "CST": "America/Chicago (or Asia/Shanghai, or America/Havana)",
        "CDT": "America/Chicago",
        "CST6CDT": "America/Chicago",
        "MST": "America/Denver (or America/Phoenix, without daylight saving)",
        "MDT": "America/Denver",
        "MST7MDT": "America/Denver",
        "PST": "America/Los_Angeles",
        "PDT": "America/Los_Angeles",
        "PST8PDT": "America/Los_Angeles",
        "AKST": "America/Anchorage",
        "HST": "Pacific/Honolulu",
        "BST": "Europe/London (or Asia/Dhaka)",
        "IST": "Asia/Kolkata (or Europe/Dublin, or Asia/Jerusalem)",
        "WET": "Europe/Lisbon",
        "CET": "Europe/Berlin",
        "CEST": "Europe/Berlin",
        "MET": "Europe/Berlin",
        "EET": "Europe/Athens",
        "EEST": "Europe/Athens",
        "MSK": "Europe/Moscow",
        "JST": "Asia/Tokyo",
        "KST": "Asia/Seoul",
        "ROK": "Asia/Seoul",
        "PRC": "Asia/Shanghai",
        "ROC": "Asia/Taipei",
        "SGT": "Asia/Singapore",
        "AEST": "Australia/Sydney",
        "AEDT": "Australia/Sydney",
        "NZST": "Pacific/Auckland",
        "NZDT": "Pacific/Auckland",
        "Z": "UTC",
        "UCT": "UTC",
        "GMT0": "UTC",
        "GMT+0": "UTC",
        "GMT-0": "UTC",
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
        """The allow-list of names for schedules."""
        listed = self._root.joinpath("zones").read_text(encoding="utf-8").split()
        return frozenset(name for name in listed if name in _UNAMBIGUOUS or not _ABBREVIATION.fullmatch(name))

    def zone(self, name: str) -> Zone:
        """Return the zone of an allowed name.

        Raises:
            ScheduleError: the zone does not exist.
        """
        zone = self._zones.get(name)
        if zone is None:
            validate(name, self.names)
            with self._root.joinpath("zoneinfo", *name.split("/")).open("rb") as data:
                zone = self._zones[name] = Zone(name, ZoneInfo.from_file(data, key=name))
        return zone


def _version(root: Traversable) -> str:
    try:
        with root.joinpath("zoneinfo", "tzdata.zi").open(encoding="utf-8") as data:
            return data.readline().removeprefix("# version ").strip()
    except OSError:
        return ""


def validate(name: str, names: frozenset[str]) -> str:
    """Return the name if it is one of `names`.

    Raises:
        ScheduleError: with the most similar zone.
    """
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
    raise ScheduleError(problem, text=shown, length=len(shown), suggestion=_meant(shown.strip(), names))


def _meant(name: str, names: frozenset[str]) -> str:
    if name.upper() in _INSTEAD:
        return _INSTEAD[name.upper()]
    if _OFFSET.fullmatch(name):
        return "the zone of the place, as in America/New_York, or UTC"
    wanted = name.casefold().replace(" ", "_")
    cities = {known.rpartition("/")[2].casefold(): known for known in sorted(names, reverse=True)}
    whole = {known.casefold(): known for known in names}
    if wanted in whole or wanted in cities:
        return whole.get(wanted) or cities[wanted]
    close = get_close_matches(wanted, whole, n=1) or get_close_matches(wanted, cities, n=1)
    return whole.get(close[0]) or cities[close[0]] if close else ""


def zone_warnings(name: str) -> tuple[str, ...]:
    """Return warnings about an allowed zone."""
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


def database() -> TimezoneDatabase:
    """Return the database in use."""
    return _InForce.database


def install(replacement: TimezoneDatabase) -> None:
    """Replace the database of every schedule, from its next query on."""
    _InForce.database = replacement


def refresh() -> TimezoneDatabase:
    """Read the `tzdata` package again after an upgrade on disk."""
    install(packaged())
    return database()


@contextmanager
def using(other: TimezoneDatabase) -> Iterator[None]:
    """Use another database within the block, to compare schedules; the block must not wait."""
    before = _InForce.database
    _InForce.database = other
    try:
        yield
    finally:
        _InForce.database = before


def zone(name: str) -> Zone:
    """Return a zone of the database in use."""
    return _InForce.database.zone(name)


def validate_timezone(name: str) -> str:
    """Return the name if a schedule may use it as a zone (CRON-13, CRON-14).

    Raises:
        ScheduleError: offsets, abbreviations, unknown names, and names that only look like zones (`posix/UTC`).
    """
    return validate(name, _InForce.database.names)
