"""The names of months, weekdays and numbers, for people."""

from collections.abc import Iterable, Sequence
from typing import Final

MONTHS: Final = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_TEENS: Final = range(11, 14)


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def ordinal(n: int) -> str:
    """`1st`, `2nd`, `11th`."""
    ending = "th" if n % 100 in _TEENS else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def runs(ascending: Iterable[int]) -> list[list[int]]:
    """The values, those that follow one another together."""
    found: list[list[int]] = []
    for value in ascending:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found
