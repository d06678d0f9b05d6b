"""Schedules of drafts: time zones, clock changes, and what cannot be expressed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...domain.schedule import ScheduleError, clock_changes, parse, validate_timezone
from .cron_dialects import Dialect, NotExpressible, translated
from .drafts import Draft, Draftings

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


def set_cron(draft: Draft, fields: Sequence[str], dialect: Dialect) -> bool:
    """Set the schedule of a draft; return whether it has one."""
    written = " ".join(fields)
    try:
        expression = translated(fields, dialect)
    except NotExpressible as error:
        draft.add("schedule-not-expressible", f"`{written}`: {error}; write a schedule of your own")
        return False
    except ScheduleError as error:
        draft.add("schedule-not-expressible", f"`{written}`: {error.problem}; write a schedule of your own")
        return False
    if expression != written:
        draft.add("schedule-rewritten", f"`{written}` is written `{expression}`")
    draft.fields["schedule"] = expression
    return True


def set_interval(
    draft: Draft, interval: timedelta, *, anchor: datetime | None = None, since: str | None = None
) -> None:
    """Set a schedule with a fixed interval.

    Args:
        draft: the job.
        interval: the time between two instants.
        anchor: one instant of the source, in UTC; a cron expression can then keep the phase of many intervals.
        since: the moment from which the source counts, for the finding; None: the last run, as here.
    """
    if anchor is not None and (expression := _phased(interval, anchor)):
        draft.fields |= {"schedule": expression, "timezone": UTC_NAME}
        return
    milliseconds = round(interval / timedelta(milliseconds=1))
    text = f"@every {milliseconds}ms" if milliseconds % 1_000 else f"@every {_short(milliseconds // 1_000)}"
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
    """Set the time zone of a draft; return whether it exists.

    A job with an unknown zone loses its schedule.
    """
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


def set_clock_changes(
    draft: Draft, now: datetime, policy: Callable[[str], dict[str, str]], *, fixed_fold: str | None = None
) -> None:
    """Set the rule for clock changes if the schedule needs it soon.

    Args:
        draft: a job with a schedule and a time zone.
        now: the present, aware.
        policy: returns the rule of the source for an expression.
        fixed_fold: the finding if the clocks repeat a fixed time, which fires once here; None: no finding.
    """
    text, zone = draft.fields.get("schedule"), str(draft.fields.get("timezone", UTC_NAME))
    if not isinstance(text, str) or zone == UTC_NAME:
        return
    changes = list(clock_changes(parse(text, zone), now, now + _AHEAD))
    if not changes:
        return
    rule = policy(text)
    folds = [change for change in changes if change.kind == "fold"]
    kinds = {"gap": len(folds) < len(changes), "fold": any(change.stepping for change in folds)}
    if chosen := {key: value for key, value in rule.items() if kinds[key]}:
        draft.fields["dst"] = dict(chosen)
    if fixed_fold and not all(change.stepping for change in folds):
        draft.add("fold-fires-once", fixed_fold)


def _short(seconds: int) -> str:
    hours, rest = divmod(seconds, 3_600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
