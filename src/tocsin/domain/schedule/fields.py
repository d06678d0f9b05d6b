"""One field of a cron expression, parsed into a bit mask (`ojs-cron` 3.1 to 3.4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from .errors import ScheduleError, placed

_NO_NAMES: Final[Mapping[str, int]] = MappingProxyType({})

_FOREIGN: Final = MappingProxyType(
    {
        "?": "* (here an unrestricted field is written *)",
        "R": "a fixed value, or @every <duration> (random values differ between the copies of a scheduler)",
        "H": "a fixed value, or @every <duration> (hashed values are not part of this syntax)",
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """The values that a field may hold; one object for each kind of field.

    Attributes:
        name: its name in messages.
        low, high: the smallest and largest value, both allowed.
        names: three-letter names, in capitals, and their values.
        cyclic: a range may wrap around the end (`FRI-MON`); `high + 1` means `low`.
    """

    name: str
    low: int
    high: int
    names: Mapping[str, int]
    cyclic: bool = False

    @property
    def allowed(self) -> str:
        names = list(self.names)
        return f"{self.low}-{self.high}" + (f" or {names[0]}-{names[-1]}" if names else "")

    @property
    def everything(self) -> int:
        return (1 << self.high + 1) - (1 << self.low)


_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

SECOND: Final = Field("second", 0, 59, _NO_NAMES)
MINUTE: Final = Field("minute", 0, 59, _NO_NAMES)
HOUR: Final = Field("hour", 0, 23, _NO_NAMES)
DAY_OF_MONTH: Final = Field("day of month", 1, 31, _NO_NAMES)
MONTH: Final = Field("month", 1, 12, MappingProxyType({name: n for n, name in enumerate(_MONTHS, 1)}), cyclic=True)
# 7 is Sunday too: it is read as 7 so that 5-7 is a range, and folded onto 0 in the mask.
DAY_OF_WEEK: Final = Field(
    "day of week", 0, 7, MappingProxyType({name: n for n, name in enumerate(_WEEKDAYS)}), cyclic=True
)
_WEEK: Final = 7


@dataclass(frozen=True, slots=True)
class Values:
    """The values that a field names.

    Attributes:
        mask: bit n is set if n is named.
        starred: the field holds a bare `*` (or `*/1`), so it restricts nothing.
        stepping: the field holds a `*`, a range or a step: it steps through values instead of listing them.
        written: the single values and the ends of ranges, as written.
    """

    mask: int
    starred: bool = False
    stepping: bool = False
    written: frozenset[int] = frozenset()

    def __or__(self, other: "Values") -> "Values":
        return Values(
            self.mask | other.mask,
            self.starred or other.starred,
            self.stepping or other.stepping,
            self.written | other.written,
        )


NOTHING: Final = Values(0)


def field_error(problem: str, text: str, start: int = 0, suggestion: str = "") -> ScheduleError:
    """Return the error of a part of a field, `text`, that begins at `start`."""
    return ScheduleError(problem, start=start, length=len(text), suggestion=suggestion, code="invalid-field")


def values_of(mask: int) -> list[int]:
    """Return the values that a mask names, in ascending order."""
    return [value for value in range(mask.bit_length()) if mask >> value & 1]


@lru_cache(maxsize=4096)
def parse_field(kind: Field, text: str) -> Values:
    """Parse a field that allows only `*`, `,`, `-` and `/`."""
    values, start = NOTHING, 0
    for item in text.split(","):
        with placed("", start):
            values |= parse_item(kind, item)
        start += len(item) + 1
    return values


@lru_cache(maxsize=4096)
def parse_item(kind: Field, text: str) -> Values:
    """Parse one element of a list: `*`, `n`, `a-b`, each with an optional `/step`."""
    body, slash, step_text = text.partition("/")
    step = _step(kind, step_text, len(body) + 1) if slash else 1
    if body == "*":
        return Values(_walk(kind, kind.low, _top(kind), step), starred=step == 1, stepping=True)
    first_text, dash, last_text = body.partition("-")
    first = read_value(kind, first_text, 0)
    if not dash:
        # n/step counts from n to the end of the field, as every cron with that form reads it.
        mask = _walk(kind, first, _top(kind), step) if slash else _walk(kind, first, first, 1)
        return Values(mask, stepping=bool(slash), written=frozenset((first,)))
    last = read_value(kind, last_text, len(first_text) + 1)
    if first > last and not kind.cyclic:
        problem = f"{kind.name}: the range {body} runs backwards; allowed are ascending ranges within {kind.allowed}"
        raise field_error(problem, body, suggestion=f"{first}-{kind.high},{kind.low}-{last}")
    return Values(_walk(kind, first, last, step), stepping=True, written=frozenset((first, last)))


def read_value(kind: Field, text: str, start: int) -> int:
    """Parse a number or a name; `start` is its position, for the error."""
    if text.isascii() and text.isdigit():
        number = int(text)
        if kind.low <= number <= kind.high:
            return number
        raise field_error(f"{kind.name}: {text} is out of range; allowed are {kind.allowed}", text, start)
    upper = text.upper()
    if upper in kind.names:
        return kind.names[upper]
    problem = f"{text!r} is not a value" if text else "a value is missing"
    meant = f"{upper[:3]} (three-letter names)" if upper[:3] in kind.names else _FOREIGN.get(upper[:1], "")
    raise field_error(f"{kind.name}: {problem}; allowed are {kind.allowed}", text, start, meant)


def _step(kind: Field, text: str, start: int) -> int:
    size = _top(kind) - kind.low + 1
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        problem = f"{kind.name}: the step {text!r} is invalid; allowed are whole numbers from 1 to {size}"
        raise field_error(problem, text, start)
    step = int(text)
    if step > size:
        unit = kind.name[0] if kind in (SECOND, MINUTE, HOUR) else ""
        problem = f"{kind.name}: the step {step} is larger than the field, which has {size} values"
        raise field_error(problem, text, start, f"@every {step}{unit}" if unit else "")
    return step


def _top(kind: Field) -> int:
    return kind.high - 1 if kind is DAY_OF_WEEK else kind.high


def _walk(kind: Field, first: int, last: int, step: int) -> int:
    if kind is DAY_OF_WEEK and first == _WEEK:
        first, last = 0, 0 if last == _WEEK else last
    size = _top(kind) - kind.low + 1
    if first > last:  # over the end of a cyclic field, and on from its beginning
        last += size
    mask = 0
    for value in range(first, last + 1, step):
        mask |= 1 << (value - kind.low) % size + kind.low
    return mask
