"""The combined meaning of the clauses of a phrase, as few cron expressions."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..english import runs
from ..errors import ScheduleError
from .clauses import ClauseSet, Interval, Marks, Pace, Times, Weekdays, Window
from .days import day_fields
from .hours import times_of_day

_MIDNIGHT: Final = "0 0"


@dataclass(frozen=True, slots=True)
class Phrase:
    """The meaning of a phrase.

    Attributes:
        expressions: the cron expressions.
        warnings: parts that the phrase left open, and the values chosen for them.
    """

    expressions: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def parse_phrase(text: str) -> Phrase:
    """Parse English.

    Raises:
        ScheduleError: the text is invalid or ambiguous; it suggests another text.
    """
    from .reader import read_clauses  # noqa: PLC0415 - loads lark, a heavy import that only phrases need

    clauses = read_clauses(text)
    try:
        read = _compose_all([ClauseSet(phrase) for phrase in clauses])
    except ScheduleError as error:
        raise ScheduleError(error.problem, text=text, length=len(text), suggestion=error.suggestion) from None
    return Phrase(
        tuple(dict.fromkeys(expression for phrase in read for expression in phrase.expressions)),
        tuple(dict.fromkeys(warning for phrase in read for warning in phrase.warnings)),
    )


def _compose_all(phrases: list[ClauseSet]) -> list[Phrase]:
    if len(phrases) > 1 and not all(phrase.has(Times, Interval) for phrase in phrases):
        raise ScheduleError(
            "phrase: with 'and every …' each part needs its own time", suggestion="every monday and friday at 9am"
        )
    return [_compose(phrase) for phrase in phrases]


def _compose(clauses: ClauseSet) -> Phrase:
    _check_pace(clauses)
    window = clauses.get(Window)
    times, days = times_of_day(clauses), day_fields(clauses)
    if window is not None and window.start > window.end and days != ["* * *"]:
        raise ScheduleError(
            "phrase: the window runs over midnight, and it is open whose day the hours after midnight belong to",
            suggestion="two phrases, one for each side of midnight",
        )
    warnings = () if times else ("no time of day was given: midnight is meant",)
    return Phrase(tuple(f"{time} {day}" for time in times or [_MIDNIGHT] for day in days), warnings)


def _check_pace(clauses: ClauseSet) -> None:
    """Require two times for `twice a day`, and two weekdays for `twice a week`."""
    pace = clauses.get(Pace)
    if pace is None or pace.unit in {"second", "minute", "hour"}:
        return
    times, weekdays = clauses.get(Times), clauses.get(Weekdays)
    named = {"day": len(times.times) if times else 1, "week": len(weekdays.days) if weekdays else 1}.get(pace.unit, 1)
    if clauses.has(Interval, Marks) or named != pace.times:
        example = {"day": "twice a day at 8am and 8pm", "week": "twice a week on monday and thursday at 9am"}
        raise ScheduleError(
            f"phrase: it promises {pace.times} times a {pace.unit} and names {named}",
            suggestion=example.get(pace.unit, f"once a {pace.unit}"),
        )


_LONGEST_PLAIN = 2
_SHORTEST_STEP = 4


def listed(values: Iterable[int], low: int, high: int) -> str:
    """Write a set of values of a field without steps: `*`, `1-5`, `1,4,7,10`."""
    ordered = sorted(set(values))
    return "*" if len(ordered) == high - low + 1 else ",".join(_in_runs(ordered))


def stepped(values: Iterable[int], low: int, high: int) -> str:
    """Write a set of values with steps where they fit: `*/15`, `9-17/2`."""
    ordered = sorted(set(values))
    steps = {later - earlier for earlier, later in pairwise(ordered)}
    if len(steps) == 1 and steps != {1}:
        step = steps.pop()
        if ordered[0] == low and ordered[-1] + step > high:
            return f"*/{step}"
        if len(ordered) >= _SHORTEST_STEP:
            return f"{ordered[0]}-{ordered[-1]}/{step}"
    return listed(ordered, low, high)


def times(seconds: Iterable[int]) -> list[str]:
    """Return the second, minute and hour fields of the expressions that name these seconds.

    The second is omitted if it is 0, as in five-field expressions.
    """
    minutes_of_hour = defaultdict[int, set[tuple[int, int]]](set)
    for at in sorted(set(seconds)):
        hour, rest = divmod(at, 3_600)
        minutes_of_hour[hour].add((rest // 60, rest % 60))
    hours_of = defaultdict[tuple[int, frozenset[int]], set[int]](set)
    for hour, marks in minutes_of_hour.items():
        for second in sorted({second for _, second in marks}):
            hours_of[second, frozenset(minute for minute, s in marks if s == second)].add(hour)
    return [
        (f"{second} " if second else "") + f"{stepped(minutes, 0, 59)} {stepped(hours, 0, 23)}"
        for (second, minutes), hours in hours_of.items()
    ]


def _in_runs(ordered: list[int]) -> list[str]:
    parts = []
    for run in runs(ordered):
        parts += [str(value) for value in run] if len(run) <= _LONGEST_PLAIN else [f"{run[0]}-{run[-1]}"]
    return parts
