"""Cron expressions of other schedulers, rewritten where Tocsin reads the same text otherwise.

| dialect | both day fields are restricted | a field counts as `*` if it | a step larger than the field |
|---|---|---|---|
| `VIXIE` (cron, cronie) | either | begins with `*`, also `*/2` | is its first value |
| `ROBFIG` (Kubernetes) | either | has a `*` or `?` without a step | is its first value |
| `CRONITER` (Airflow) | either | names every value | is its first value |
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...domain.schedule import ScheduleError
from ...domain.schedule.expression import parse_expression
from ...domain.schedule.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, Field, Values, parse_item
from ...domain.schedule.pattern import Pattern

FIELDS: Final = (MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)
_WEEKS: Final = ((1, 7), (8, 14), (15, 21), (22, 28), (29, 31))
"""The days of a month on which the first, second … such weekday can fall."""
_EXTENDED: Final = re.compile(r"[LW#]", re.IGNORECASE)
_BARE_STEP: Final = re.compile(r"(?:^|[ ,])\w+/\S+")
_NAMES: Final = re.compile(r"[A-Z]{3}", re.IGNORECASE)


def _every(kind: Field) -> int:
    return (1 << 7) - 1 if kind is DAY_OF_WEEK else kind.everything


@dataclass(frozen=True, slots=True)
class Dialect:
    """The rules of a scheduler for the two day fields."""

    is_star: Callable[[str, int, int], bool]
    """Whether a day field restricts nothing, by its text, its mask and the mask of every value."""
    has_bare_step: bool = True
    """Whether `5/15` counts from 5 to the end of the field; if not, the expression is refused."""


def _vixie_star(text: str, _mask: int, _every: int) -> bool:
    return text.startswith("*")


def _robfig_star(text: str, _mask: int, _every: int) -> bool:
    return any(item in {"*", "?", "*/1", "?/1"} for item in text.split(","))


def _full(_text: str, mask: int, every: int) -> bool:
    return mask == every


VIXIE: Final = Dialect(_vixie_star, has_bare_step=False)
ROBFIG: Final = Dialect(_robfig_star)
CRONITER: Final = Dialect(_full)


class NotExpressible(ValueError):
    """Tocsin has no schedule with these instants."""


def translated(fields: Sequence[str], dialect: Dialect) -> str:
    """Return the expression for five fields of a dialect.

    It is the same text if Tocsin reads it alike.

    Raises:
        ScheduleError: a field cannot be read.
        NotExpressible: no expression has these instants.
    """
    text = " ".join(fields)
    if any(_EXTENDED.search(_NAMES.sub("", part)) for part in (fields[2], fields[4])):
        parse_expression(text)
        return text
    if not dialect.has_bare_step and (bare := _BARE_STEP.search(text)):
        raise ScheduleError(
            f"expression: the step of {bare[0].strip(' ,')} needs a range or a * before it",
            text=text,
            code="invalid-field",
        )
    masks = [_mask(kind, part) for kind, part in zip(FIELDS, fields, strict=True)]
    stars = [dialect.is_star(fields[at], masks[at], _every(FIELDS[at])) for at in (2, 4)]
    return rendered(masks, stars, both=False, written=text)


def rendered(masks: Sequence[int], stars: Sequence[bool], *, both: bool, written: str = "") -> str:
    """Return the expression that names the values of five fields.

    Args:
        masks: bit n of a field's mask says that it names n.
        stars: whether the day of month, and the day of week, restricts nothing in the source.
        both: whether a day must match both day fields even if both are restricted.
        written: the text in the source.

    Raises:
        NotExpressible: no expression has these instants.
    """
    minute, hour, month_days, month, week_days = masks
    days, weekdays = _days(month_days, week_days, either=not both and not any(stars))
    texts = (_listed(MINUTE, minute), _listed(HOUR, hour), days, _listed(MONTH, month), weekdays)
    canonical = " ".join(texts)
    return written if written and _alike(written, canonical) else canonical


def _mask(kind: Field, text: str) -> int:
    values = Values(0)
    for item in text.replace("?", "*").split(","):
        body, slash, step = item.partition("/")
        if slash and step.isascii() and step.isdigit() and int(step) > _every(kind).bit_count():
            mask = parse_item(kind, body).mask  # checks the body
            first = mask & -mask if "-" not in body else parse_item(kind, body.partition("-")[0]).mask
            values |= Values(first)
        else:
            values |= parse_item(kind, item)
    return _folded(kind, values.mask)


def _folded(kind: Field, mask: int) -> int:
    """Return the mask with Sunday as 0 only."""
    return (mask | mask >> 7) & _every(kind) if kind is DAY_OF_WEEK else mask


def _days(month_days: int, week_days: int, *, either: bool) -> tuple[str, str]:
    in_month, in_week = _listed(DAY_OF_MONTH, month_days), _listed(DAY_OF_WEEK, week_days)
    if either and "*" in (in_month, in_week):
        return "*", "*"
    if either or "*" in (in_month, in_week):
        return in_month, in_week
    # A day must match both fields. Tocsin has no such rule, but it has the nth weekday of a month.
    weeks, rest = [], month_days
    for number, (first, last) in enumerate(_WEEKS, start=1):
        block = (1 << last + 1) - (1 << first)
        if month_days & block == block:
            weeks.append(number)
            rest &= ~block
    if rest or not weeks:
        raise NotExpressible("a day must match the day of month and the day of week, and Tocsin has no such rule")
    return "*", ",".join(f"{day}#{week}" for day in range(7) if week_days >> day & 1 for week in weeks)


def _listed(kind: Field, mask: int) -> str:
    if mask == _every(kind):
        return "*"
    ranges: list[list[int]] = []
    for value in range(mask.bit_length()):
        if not mask >> value & 1:
            continue
        if ranges and ranges[-1][-1] == value - 1:
            ranges[-1][1:] = [value]
        else:
            ranges.append([value])
    return ",".join("-".join(map(str, ends)) if ends[-1] - ends[0] != 1 else f"{ends[0]},{ends[1]}" for ends in ranges)


def _alike(written: str, canonical: str) -> bool:
    wanted = parse_expression(canonical).pattern
    try:
        pattern = parse_expression(written).pattern
    except ScheduleError:
        return False
    return _parts(pattern) == _parts(wanted)


def _parts(pattern: Pattern) -> tuple[object, ...]:
    return pattern.seconds, pattern.minutes, pattern.hours, pattern.months, pattern.days.masks
