"""The clauses of a phrase, before they are combined."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from ..errors import ScheduleError

Unit: TypeAlias = Literal["second", "minute", "hour", "day", "week", "month", "quarter", "year"]
"""A unit of time that can be counted: "every 3 months"."""


class Interval(msgspec.Struct, frozen=True):
    """`every 5 minutes`: an instant each `seconds` seconds."""

    seconds: int


class Period(msgspec.Struct, frozen=True):
    """`every 3 months`, `weekly`: once in each `count`-th `unit`."""

    unit: Unit
    count: int = 1


class Pace(msgspec.Struct, frozen=True):
    """`twice a day`: the number of instants in each `unit`."""

    times: int
    unit: Unit


class Weekdays(msgspec.Struct, frozen=True):
    """`on mondays and fridays`: 0 is Sunday."""

    days: frozenset[int]


class Exclusion(msgspec.Struct, frozen=True):
    """`except sundays`: 0 is Sunday."""

    days: frozenset[int]


class MonthDays(msgspec.Struct, frozen=True):
    """`the last friday of the quarter`: items for a day field, and their months.

    Attributes:
        month_days: items of the day-of-month field: `1`, `L`, `LW`, `15W`.
        week_days: items of the day-of-week field: `5#3`, `5L`.
        of: the unit whose day is meant; None if the phrase leaves it open.
        months: the named months, if any.
    """

    month_days: tuple[str, ...] = ()
    week_days: tuple[str, ...] = ()
    of: Unit | None = None
    months: frozenset[int] = frozenset()


class Dates(msgspec.Struct, frozen=True):
    """`on march 5th`: pairs of month and day."""

    dates: tuple[tuple[int, int], ...]


class Months(msgspec.Struct, frozen=True):
    """`in june and july`."""

    months: frozenset[int]


class Times(msgspec.Struct, frozen=True):
    """`at 9am and 5:30pm`, in seconds since midnight."""

    times: tuple[int, ...]


class Marks(msgspec.Struct, frozen=True):
    """`at 15 and 45 minutes past the hour`."""

    minutes: tuple[int, ...]


class Window(msgspec.Struct, frozen=True):
    """`between 9am and 5pm`: seconds since midnight, both inclusive.

    It spans midnight if `start` is later.
    """

    start: int
    end: int


Clause: TypeAlias = (
    Interval | Period | Pace | Weekdays | Exclusion | MonthDays | Dates | Months | Times | Marks | Window
)


_C = TypeVar("_C")


def phrase_error(problem: str, suggestion: str) -> ScheduleError:
    """Return the error of a phrase that contradicts itself or is ambiguous."""
    return ScheduleError(f"phrase: {problem}", suggestion=suggestion, code="invalid-phrase")


def said_twice(subject: str, suggestion: str) -> ScheduleError:
    """Return the error of a phrase that has two clauses on one subject."""
    return phrase_error(f"it says twice {subject}; it may say so once", suggestion)


class ClauseSet:
    """The clauses of one phrase; raise ScheduleError for two of one kind."""

    def __init__(self, clauses: Iterable[Clause]) -> None:
        self._clauses: dict[type, Clause] = {}
        for clause in clauses:
            if type(clause) in self._clauses:
                raise said_twice(
                    _SUBJECTS.get(type(clause), "when"),
                    "one phrase for each, joined by 'and every …', or a list such as 'at 9am and 5pm'",
                )
            self._clauses[type(clause)] = clause

    def get(self, kind: type[_C]) -> _C | None:
        clause = self._clauses.get(kind)
        return clause if isinstance(clause, kind) else None

    def has(self, *kinds: type[Clause]) -> bool:
        """Return whether the phrase has a clause of any of these kinds."""
        return any(kind in self._clauses for kind in kinds)


_SUBJECTS: Final[Mapping[type[Clause], str]] = {
    **dict.fromkeys((Interval, Period, Pace), "how often"),
    Weekdays: "on which weekdays",
    MonthDays: "on which days",
    Months: "in which months",
    Times: "at what time",
    Window: "between which times",
}
