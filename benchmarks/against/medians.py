"""The median of repeated measurements, and an interval for it.

The interval has two of the measured values as its ends: the k-th smallest and the k-th largest. By the binomial distribution such
an interval holds the true median with a probability that depends only on k and on the number of values; k is the largest for
which it is at least 95 %. With ten values these are the second smallest and the second largest (98 %). Fewer than six values
cannot reach 95 %; the interval is then their range, and `confidence` says how much it holds (50 % for two values, 94 % for five).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, with its interval.

    Attributes:
        median: of the values.
        low: the lower end of the interval.
        high: the upper end of the interval.
        number: how many values there are.
        confidence: the probability with which the interval holds the true median.
    """

    median: float
    low: float
    high: float
    number: int
    confidence: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median and its interval.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values to take the median of")
    ordered, number = sorted(values), len(values)
    inner = [k for k in range(1, number // 2 + 1) if _held(k, number) >= CONFIDENCE]
    k = max(inner, default=1)
    return Spread(statistics.median(ordered), ordered[k - 1], ordered[-k], number, _held(k, number))


def _held(k: int, number: int) -> float:
    """Return the probability with which the k-th smallest and largest values enclose the median."""
    outside = 2 * sum(comb(number, i) for i in range(k))
    return 1 - outside / (1 << number)
