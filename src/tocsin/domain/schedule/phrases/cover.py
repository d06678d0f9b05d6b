"""Sets of values as cron fields, and times of day as few cron expressions."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from ..english import runs

_LONGEST_PLAIN = 2
_SHORTEST_STEP = 4


def listed(values: Iterable[int], low: int, high: int) -> str:
    """Write a set of values of a field without steps: `*`, `1-5`, `1,4,7,10`."""
    numbers = sorted(set(values))
    return "*" if len(numbers) == high - low + 1 else ",".join(_in_runs(numbers))


def stepped(values: Iterable[int], low: int, high: int) -> str:
    """Write a set of values with steps where they fit: `*/15`, `9-17/2`."""
    numbers = sorted(set(values))
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    if len(steps) == 1 and steps != {1}:
        step = steps.pop()
        if numbers[0] == low and numbers[-1] + step > high:
            return f"*/{step}"
        if len(numbers) >= _SHORTEST_STEP:
            return f"{numbers[0]}-{numbers[-1]}/{step}"
    return listed(numbers, low, high)


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
