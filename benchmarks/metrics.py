"""Metrics: the results of a workload, each named with its unit and its label."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

Metrics: TypeAlias = dict[str, float]
Results: TypeAlias = dict[str, Metrics]
"""What was measured: {workload: {metric: value}}, where a workload is `W2`, `W2 durable` or `W2 celery`."""


def labelled(metrics: Mapping[str, float], label: str) -> Metrics:
    """Return metrics with a label added in parentheses.

    `p99_ms` becomes `p99_ms (1,000)`, and `cpu_ms (nats)` becomes `cpu_ms (1,000, nats)`.
    """
    found = {}
    for metric, value in metrics.items():
        name, _, rest = metric.partition(" (")
        found[f"{name} ({label}, {rest}" if rest else f"{name} ({label})"] = value
    return found


def percentiles(values: Collection[float], *, unit: str, scale: float = 1.0) -> Metrics:
    """p50, p99 and the maximum, named with their unit.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("nothing began, so there is nothing to take percentiles of")
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p99": int(len(ordered) * 0.99), "max": len(ordered) - 1}
    return {f"{name}_{unit}": ordered[index] * scale for name, index in at.items()}
