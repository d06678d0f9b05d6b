"""The times of day that a phrase names, as second, minute and hour fields."""

from datetime import timedelta
from typing import Final

from ..rules import format_duration
from . import days
from .clauses import ClauseSet, Interval, Marks, Pace, Times, Window, phrase_error

_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400


def times_of_day(clauses: ClauseSet) -> list[str]:
    """Return second, minute and hour fields, one text per expression; none without a time."""
    interval, times, marks = clauses.get(Interval), clauses.get(Times), clauses.get(Marks)
    window, pace = clauses.get(Window), clauses.get(Pace)
    if pace is not None and pace.unit in {"second", "minute", "hour"}:
        interval = _once_per(pace, interval)
    if times is not None and (interval or marks or window):
        raise phrase_error(
            "it names times of day and an interval; it may name one of the two", "every 15 minutes, or at 9am"
        )
    if times is not None:
        return days.times(times.times)
    if interval is None and marks is not None:
        interval = Interval(_HOUR)
    if interval is not None:
        return _steps(interval.seconds, marks, window)
    if window is not None:
        raise phrase_error("it says between which times, but not how often", "every hour between 9am and 5pm")
    return []


def _once_per(pace: Pace, interval: Interval | None) -> Interval:
    size = {"second": 1, "minute": _MINUTE, "hour": _HOUR}[pace.unit]
    if interval is not None or pace.times != 1:
        even = size // pace.times if pace.times and size % pace.times == 0 else 0
        raise phrase_error(
            f"it does not say when in the {pace.unit} the {pace.times} times are",
            f"every {even // _MINUTE} minutes" if even >= _MINUTE else "every 15 minutes",
        )
    return Interval(size)


def _steps(step: int, marks: Marks | None, window: Window | None) -> list[str]:
    _require_even(step)
    if marks is not None and step % _HOUR:
        raise phrase_error(
            "it names minutes past the hour and an interval in minutes; it may name one of the two",
            "every hour at minute 15",
        )
    if step < _MINUTE:
        return _seconds(step, window)
    if marks is None:
        return days.times(_grid(step, window))
    return days.times(at + minute * _MINUTE for at in _hours(step, window) for minute in marks.minutes)


def _hours(step: int, window: Window | None) -> list[int]:
    """Return the hours whose minutes are named, without a window's last hour, in seconds."""
    if window is not None and (window.start % _HOUR or window.end % _HOUR):
        raise phrase_error(
            "with minutes past the hour, the window must begin and end on the hour",
            "every hour between 9am and 5pm at minute 15",
        )
    hours = _grid(step, window)
    return [at for at in hours if window is None or at != window.end]


def _seconds(step: int, window: Window | None) -> list[str]:
    seconds = days.stepped(range(0, _MINUTE, step), 59)
    if window is None:
        return [f"{seconds} * *"]
    minutes = _grid(_MINUTE, window)
    # The window's end belongs to it, but not the rest of its minute.
    return [f"{seconds} {fields}" for fields in days.times(minutes[:-1])] + days.times(minutes[-1:])


def _grid(step: int, window: Window | None) -> list[int]:
    """Return the seconds in the window in steps, its end included if reached."""
    if window is None:
        return list(range(0, _DAY, step))
    if step < _HOUR and (window.start % step or window.end % _MINUTE):
        raise phrase_error(
            f"the window does not begin a multiple of {format_duration(timedelta(seconds=step))} past the hour",
            "every 15 minutes between 9:00 and 17:00",
        )
    if window.start == window.end:
        raise phrase_error("the window begins and ends at the same time", "every hour between 9am and 5pm")
    end = window.end if window.start < window.end else window.end + _DAY
    return [at % _DAY for at in range(window.start, end + 1, step)]


def _require_even(step: int) -> None:
    """Require an interval that divides the next larger unit, where cron starts again."""
    unit = _MINUTE if step < _MINUTE else _HOUR if step < _HOUR else _DAY
    if step == 0:
        raise phrase_error("an interval of 0 means nothing", "every 5 minutes")
    if unit % step:
        shown = format_duration(timedelta(seconds=step))
        name = {_MINUTE: "minute", _HOUR: "hour", _DAY: "day"}[unit]
        below, above = _neighbours(step, unit)
        raise phrase_error(
            f"{shown} does not divide the {name} evenly, so it is not a rule on the wall clock",
            f"@every {shown}, which counts from registration; or every {below}, or every {above}",
        )


def _neighbours(step: int, unit: int) -> tuple[str, str]:
    size = _HOUR if unit == _DAY else _MINUTE if unit == _HOUR else 1
    name = {1: "seconds", _MINUTE: "minutes", _HOUR: "hours"}[size]
    even = [n * size for n in range(1, unit // size + 1) if unit // size % n == 0]
    below = max((n for n in even if n < step), default=even[0])
    above = min((n for n in even if n > step), default=even[-1])
    return f"{below // size} {name}", f"{above // size} {name}"
