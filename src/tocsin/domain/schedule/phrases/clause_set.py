"""The clauses of one phrase, at most one of each kind, each found by its kind."""

from collections.abc import Iterable
from typing import TypeVar

from ..errors import ScheduleError
from .clauses import Clause

_C = TypeVar("_C")


class ClauseSet:
    """The clauses of one phrase.

    Raises:
        ScheduleError: two clauses are of the same kind.
    """

    def __init__(self, clauses: Iterable[Clause]) -> None:
        self._clauses: dict[type, Clause] = {}
        for clause in clauses:
            if type(clause) in self._clauses:
                raise ScheduleError(
                    f"phrase: it says twice {_SUBJECTS.get(type(clause).__name__, 'when')}; it may say so once",
                    suggestion="one phrase for each, joined by 'and every …', or a list such as 'at 9am and 5pm'",
                )
            self._clauses[type(clause)] = clause

    def get(self, kind: type[_C]) -> _C | None:
        """The clause of this kind, if there is one."""
        clause = self._clauses.get(kind)
        return clause if isinstance(clause, kind) else None

    def has(self, *kinds: type[Clause]) -> bool:
        """Whether there is a clause of any of these kinds."""
        return any(kind in self._clauses for kind in kinds)


_SUBJECTS = {
    "Interval": "how often",
    "Period": "how often",
    "Pace": "how often",
    "Weekdays": "on which weekdays",
    "MonthDays": "on which days",
    "Months": "in which months",
    "Times": "at what time",
    "Window": "between which times",
}
