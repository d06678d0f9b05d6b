"""Schedules of drafts: time zones, clock changes, and what cannot be expressed.

Cron expressions of other schedulers are rewritten where Tocsin reads the same text otherwise:

| dialect | both day fields are restricted | a field counts as `*` if it | a step larger than the field |
|---|---|---|---|
| `VIXIE` (cron, cronie) | either | begins with `*`, also `*/2` | is its first value |
| `ROBFIG` (Kubernetes) | either | has a `*` or `?` without a step | is its first value |
| `CRONITER` (Airflow) | either | names every value | is its first value |
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...domain import duration
from ...domain.schedule import ScheduleError, clock_changes, parse, validate_timezone
from ...domain.schedule.expression import ALIASES, parse_expression
from ...domain.schedule.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, Field, Values, parse_item
from ...domain.schedule.pattern import Pattern
from .drafts import Draft, Draftings

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


VIXIE: Final = Dialect(lambda text, _mask, _every: text.startswith("*"), has_bare_step=False)
ROBFIG: Final = Dialect(lambda text, _mask, _every: not {"*", "?", "*/1", "?/1"}.isdisjoint(text.split(",")))
CRONITER: Final = Dialect(lambda _text, mask, every: mask == every)


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
    masks = [mask_of(kind, part) for kind, part in zip(FIELDS, fields, strict=True)]
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


def mask_of(kind: Field, text: str) -> int:
    values = Values(0)
    for item in text.replace("?", "*").split(","):
        body, slash, step = item.partition("/")
        if slash and step.isascii() and step.isdigit() and int(step) > _every(kind).bit_count():
            mask = parse_item(kind, body).mask  # checks the body
            first = mask & -mask if "-" not in body else parse_item(kind, body.partition("-")[0]).mask
            values |= Values(first)
        else:
            values |= parse_item(kind, item)
    # Sunday is 0 only.
    return (values.mask | values.mask >> 7) & _every(kind) if kind is DAY_OF_WEEK else values.mask


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


UTC_NAME: Final = "UTC"
_AHEAD: Final = timedelta(days=2 * 366)
"""How far ahead clock changes are looked for: two of each kind."""
_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_WEEK: Final = timedelta(weeks=1)


@dataclass(frozen=True, slots=True)
class Zone:
    """The time zone of sources that name none."""

    name: str = UTC_NAME
    is_given: bool = False

    def note_in(self, drafted: Draftings, whose: str) -> None:
        """Add a finding to a file, unless the user named the zone."""
        if not self.is_given:
            text = f"the file does not name its time zone, and {self.name} is written: pass --timezone with the zone of {whose}"
            drafted.add("timezone-assumed", text)


def fields_of(text: str) -> list[str]:
    """Return the fields of an expression with single spaces, or of an alias."""
    return ALIASES.get(text, text).split(" ")


def set_cron(draft: Draft, text: str, dialect: Dialect) -> bool:
    """Set the schedule of a draft by an expression or an alias, if possible."""
    fields = fields_of(text)
    written = " ".join(fields)
    try:
        expression = translated(fields, dialect)
    except (NotExpressible, ScheduleError) as error:
        reason = error.problem if isinstance(error, ScheduleError) else error
        draft.add("schedule-not-expressible", f"`{written}`: {reason}; write a schedule of your own")
        return False
    if expression != written:
        draft.add("schedule-rewritten", f"`{written}` is written `{expression}`")
    draft.fields["schedule"] = text if text in ALIASES else expression
    return True


def set_interval(
    draft: Draft, interval: timedelta, *, anchor: datetime | None = None, since: str | None = None
) -> None:
    """Set a schedule with a fixed interval.

    `anchor`: an instant of the source, in UTC; a cron expression can keep its phase. `since`: the moment from which
    the source counts, for the finding; None: the last run, as here.
    """
    if anchor is not None and (expression := _phased(interval, anchor)):
        draft.fields |= {"schedule": expression, "timezone": UTC_NAME}
        return
    milliseconds = round(interval / timedelta(milliseconds=1))
    text = f"@every {milliseconds}ms" if milliseconds % 1_000 else f"@every {duration.short(milliseconds // 1_000)}"
    try:
        parse(text)
    except ScheduleError as error:
        draft.add("schedule-not-expressible", f"an interval of {interval}: {error.problem}")
        return
    if timedelta(milliseconds=milliseconds) != interval:
        draft.add("duration-rounded", f"{interval.total_seconds()} seconds are written as {milliseconds} ms")
    draft.fields["schedule"] = text
    if since is not None:
        said = f"`{text}` counts from the registration of the job or its last trigger, not from {since}"
        draft.add("interval-anchor", said)


def _phased(interval: timedelta, anchor: datetime) -> str | None:
    """Return the cron expression of an interval; None: it divides neither hour, day nor week."""
    if anchor.second or anchor.microsecond or interval % _MINUTE or interval <= timedelta():
        return None
    minute, hour, week_day = anchor.minute, anchor.hour, anchor.isoweekday() % 7
    if interval == _WEEK:
        return f"{minute} {hour} * * {week_day}"
    if interval <= _HOUR and not _HOUR % interval:
        step = interval // _MINUTE
        minutes = ",".join(str(at) for at in range(minute % step, 60, step))
        return f"{'*' if step == 1 else minutes} * * * *"
    if interval % _HOUR or _DAY % interval:
        return None
    step = interval // _HOUR
    return f"{minute} {','.join(str(at) for at in range(hour % step, 24, step))} * * *"


def set_timezone(draft: Draft, name: str) -> bool:
    """Set the time zone of a draft; if unknown, remove its schedule and return False."""
    try:
        validate_timezone(name)
    except ScheduleError as error:
        draft.add(
            "timezone-unknown", f"{error.problem}: correct the zone, and write `{draft.fields.pop('schedule', '')}`"
        )
        return False
    if name != UTC_NAME:
        draft.fields["timezone"] = name
    return True


def set_clock_changes(draft: Draft, now: datetime, rule: Mapping[str, str], *, fixed_fold: str | None = None) -> None:
    """Set the rule of the source for clock changes if the schedule needs it soon.

    `fixed_fold`: the finding if the clocks repeat a fixed time, which fires once here; None: no finding.
    """
    text, zone = draft.fields.get("schedule"), str(draft.fields.get("timezone", UTC_NAME))
    if not isinstance(text, str) or zone == UTC_NAME:
        return
    changes = list(clock_changes(parse(text, zone), now, now + _AHEAD))
    if not changes:
        return
    folds = [change for change in changes if change.kind == "fold"]
    kinds = {"gap": len(folds) < len(changes), "fold": any(change.stepping for change in folds)}
    if chosen := {key: value for key, value in rule.items() if kinds[key]}:
        draft.fields["dst"] = dict(chosen)
    if fixed_fold and not all(change.stepping for change in folds):
        draft.add("fold-fires-once", fixed_fold)
