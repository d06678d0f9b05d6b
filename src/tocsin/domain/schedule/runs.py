"""Neighbours in a row of numbers: what a list names as `5 to 9`, and a cron field as `5-9`."""

from collections.abc import Iterable


def runs(ascending: Iterable[int]) -> list[list[int]]:
    """The values, those that follow one another together."""
    found: list[list[int]] = []
    for value in ascending:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found
