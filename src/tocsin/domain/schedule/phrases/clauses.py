"""What the clauses of a phrase say, each by itself, before they are put together."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["second", "minute", "hour", "day", "week", "month", "quarter", "year"]
"""A unit of time that can be counted: "every 3 months"."""


@dataclass(frozen=True, slots=True)
class Interval:
    """As in `every 5 minutes`: an instant each `seconds` seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Period:
    """As in `every 3 months`, `weekly`: something in each `count`-th `unit`."""

    unit: Unit
    count: int = 1


@dataclass(frozen=True, slots=True)
class Pace:
    """As in `twice a day`: how many instants there must be in each `unit`."""

    times: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Weekdays:
    """As in `on mondays and fridays`: 0 is Sunday."""

    days: frozenset[int]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """As in `except sundays`: 0 is Sunday."""

    days: frozenset[int]


@dataclass(frozen=True, slots=True)
class MonthDays:
    """As in `the last friday of the quarter`: items for one of the two day fields, and the months they are in.

    Attributes:
        month_days: items of the day-of-month field: `1`, `L`, `LW`, `15W`.
        week_days: items of the day-of-week field: `5#3`, `5L`.
        of: the unit whose day is meant; None if the phrase leaves it open.
        months: the months that were named, if any.
    """

    month_days: tuple[str, ...] = ()
    week_days: tuple[str, ...] = ()
    of: Unit | None = None
    months: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Dates:
    """As in `on march 5th`: pairs of month and day."""

    dates: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Months:
    """As in `in june and july`."""

    months: frozenset[int]


@dataclass(frozen=True, slots=True)
class Times:
    """As in `at 9am and 5:30pm`, in seconds since midnight."""

    times: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Marks:
    """As in `at 15 and 45 minutes past the hour`."""

    minutes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """As in `between 9am and 5pm`: seconds since midnight, both belonging to it; over midnight if `start` is later."""

    start: int
    end: int


Clause: TypeAlias = (
    Interval | Period | Pace | Weekdays | Exclusion | MonthDays | Dates | Months | Times | Marks | Window
)
