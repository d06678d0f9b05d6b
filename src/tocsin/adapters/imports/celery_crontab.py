"""Celery's `crontab(…)` as a schedule.

A time must match all five fields, the two day fields included. A range may run over the end of its field.
"""

import re
from typing import Any, Final

from ...domain.schedule.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, Field
from .drafts import Draft
from .python_values import Call, shown
from .schedules import NotExpressible, rendered

_ARGUMENTS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_KINDS: Final = {
    "minute": MINUTE,
    "hour": HOUR,
    "day_of_month": DAY_OF_MONTH,
    "month_of_year": MONTH,
    "day_of_week": DAY_OF_WEEK,
}
"""In the order of a cron expression."""
_ITEM: Final = re.compile(r"(?:(?P<star>\*)|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]{1,4}))?")


def set_crontab(draft: Draft, call: Call) -> bool:
    """Set the schedule of a draft from a `crontab(…)`; return whether it has one."""
    arguments: tuple[Any, ...] = call.args
    names: tuple[str, ...] = _ARGUMENTS
    if call.name == "from_string" and len(call.args) == 1 and isinstance(call.args[0], str):
        arguments, names = tuple(call.args[0].split()), tuple(_KINDS)  # in the order of a cron expression
        if len(arguments) != len(names):
            draft.add("schedule-not-expressible", f"{shown(call)} has no five fields: write a schedule of your own")
            return False
    given = {**dict(zip(names, arguments, strict=False)), **call.keywords}
    for name in (name for name in given if name not in _ARGUMENTS):
        draft.add("field-not-supported", f"`{name[:100]}` of {shown(call)} has no equivalent")
    try:
        masks = [_mask(kind, name, given.get(name, "*")) for name, kind in _KINDS.items()]
        draft.fields["schedule"] = rendered(masks, (False, False), both=True, written=_written(given))
    except _Computed as error:
        draft.add("computed-at-run-time", f"{error}: write `schedule` by hand")
        return False
    except (ValueError, NotExpressible) as error:
        draft.add("schedule-not-expressible", f"{shown(call)}: {error}; write a schedule of your own")
        return False
    return True


class _Computed(Exception):
    """A field is computed at run time."""


def _written(given: dict[str, Any]) -> str:
    """Return the fields as a cron expression, if each is a text or a number."""
    parts = [str(given.get(name, "*")).replace(" ", "") for name in _KINDS]
    is_plain = all(
        isinstance(given.get(name, "*"), str | int) and part for name, part in zip(_KINDS, parts, strict=True)
    )
    return " ".join(parts) if is_plain else ""


def _mask(kind: Field, name: str, value: Any) -> int:  # noqa: ANN401 - an argument
    match value:
        case bool():
            raise _Computed(f"`{name}` is {value}")
        case int():
            return 1 << _number(kind, name, str(value))
        case str():
            mask = 0
            for item in value.split(","):
                mask |= _item(kind, name, item.strip())
            return mask
        case list():
            mask = 0
            for each in value:
                mask |= _mask(kind, name, each)
            if not mask:
                raise ValueError(f"`{name}` is an empty list")
            return mask
        case _:
            raise _Computed(f"`{name}` is {shown(value)}")


def _item(kind: Field, name: str, item: str) -> int:
    found = _ITEM.fullmatch(item)
    step = int(found["step"] or 1) if found else 0
    if found is None or step == 0 or (found["step"] and not found["star"] and not found["last"]):
        raise ValueError(f"`{name}` has {item[:40]!r}, which Celery cannot read")
    top = 6 if kind is DAY_OF_WEEK else kind.high
    if found["star"]:
        values = range(kind.low, top + 1)
    else:
        first = _number(kind, name, found["first"])
        last = first if found["last"] is None else _number(kind, name, found["last"])
        values = range(first, last + 1) if first <= last else range(first, last + top - kind.low + 2)
    mask = 0
    for value in values[::step]:
        mask |= 1 << (value - kind.low) % (top - kind.low + 1) + kind.low
    return mask


def _number(kind: Field, name: str, text: str) -> int:
    if kind is DAY_OF_WEEK and text[:3].upper() in kind.names:
        return kind.names[text[:3].upper()]
    top = 6 if kind is DAY_OF_WEEK else kind.high
    if not (text.isascii() and text.isdigit() and len(text) < 5 and kind.low <= int(text) <= top):  # noqa: PLR2004
        raise ValueError(f"`{name}` has {text[:40]!r}; allowed are {kind.low}-{top}")
    return int(text)
