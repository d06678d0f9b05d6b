"""The gauges of queues."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from ....domain.queue_backlog import QueueBacklog
from ....domain.totals import OTHER
from ....settings import Settings
from . import catalog
from .catalog import Family, Metric

MAX_QUEUES: Final = 500
"""Queues with series of their own."""

Key: TypeAlias = tuple[str, ...]


def own_series(queues: Iterable[str], settings: Settings) -> frozenset[str]:
    """Return the queues that have series of their own, those of the settings first."""
    configured = {*settings.matched_queues, *settings.bridged_queues}
    return frozenset(sorted(queues, key=lambda queue: (queue not in configured, queue))[:MAX_QUEUES])


def families(backlogs: Mapping[str, QueueBacklog], shown: Collection[str], paused: Collection[str]) -> list[Family]:
    """Return the gauges of the tasks that the matcher shows.

    `shown`: the queues with series of their own; `paused`: those that operators paused.
    """
    return [
        gauge(
            catalog.QUEUE_TASKS,
            (
                ((queue, state), number)
                for queue, backlog in backlogs.items()
                for state, number in (
                    ("waiting", backlog.waiting),
                    ("running", backlog.running),
                    ("held_back", backlog.all_held_back),
                )
            ),
            shown,
        ),
        gauge(
            catalog.QUEUE_WAITING,
            (
                ((queue, reason), number)
                for queue, backlog in backlogs.items()
                for reason, number in reasons(backlog, is_paused=queue in paused).items()
            ),
            shown,
        ),
    ]


_LIMITS: Final = {"concurrency": "queue_limit", "namespace": "namespace_limit", "rate": "queue_rate"}


def reasons(backlog: QueueBacklog, *, is_paused: bool) -> dict[str, int]:
    """Return the number of tasks that wait for each reason."""
    numbers = dict.fromkeys(("queue_paused", "queue_limit", "namespace_limit", "queue_rate", "job_limit", "worker"), 0)
    if is_paused:
        numbers["queue_paused"] = backlog.waiting
    elif backlog.held_by is not None:
        numbers[_LIMITS[backlog.held_by]] = backlog.waiting
    else:
        numbers["job_limit"] = min(backlog.all_held_back, backlog.waiting)
        numbers["worker"] = backlog.waiting - numbers["job_limit"]
    return numbers


def gauge(
    metric: Metric,
    samples: Iterable[tuple[Key, float]],
    shown: Collection[str],
    *,
    combine: Callable[[float, float], float] = float.__add__,
) -> Family:
    """Return a gauge of queues, with one value for those that are not shown."""
    combined: dict[Key, float] = {}
    for (queue, *labels), value in samples:
        key = (queue if queue in shown else OTHER, *labels)
        combined[key] = combine(combined[key], float(value)) if key in combined else float(value)
    return metric.gauge(catalog.OWN_PREFIX, combined.items())
