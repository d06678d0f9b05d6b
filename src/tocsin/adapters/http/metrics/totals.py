"""The counters of an installation, from the totals of its history.

Every registered job has its series from its registration on, at zero, because `increase()` does not see the first value of a series.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias, get_args

from ....domain.definition import JobDefinition
from ....domain.events import MISSED_REASONS, TriggerKind
from ....domain.totals import BUCKETS_S, NO_BOUND, OTHER, Kind, Total
from . import catalog
from .catalog import Family, Metric

_STATUSES: Final = ("completed", "failed", "cancelled", "skipped")
_TRIGGERS: Final[tuple[str, ...]] = get_args(TriggerKind)
_LOST: Final = ("planned", "admitted")
_STEP_ENDS: Final = ("completed", "failed")
MAX_FIRST_STEPS: Final = 10_000
"""Steps that have series before they run, those of the oldest jobs. Others have theirs from their first end on."""

Key: TypeAlias = tuple[str, ...]


def families(
    totals: Mapping[Total, int], definitions: Mapping[str, JobDefinition], prefix: str, *, max_jobs: int
) -> list[Family]:
    """Return the counters.

    `definitions`: the registered jobs, oldest first. Jobs beyond `max_jobs` have no series. Names that are not registered and never ran
    are counted under `OTHER`, because publishers outside choose them.
    """
    totals = _named(totals, definitions)
    others = {total.job for total in totals if total.job} - definitions.keys()
    jobs = [*definitions, *sorted(others)]
    shown = dict.fromkeys(jobs[:max_jobs])
    by_kind: dict[str, dict[Total, int]] = {}
    for total, count in totals.items():
        if not total.job or total.job in shown:
            by_kind.setdefault(total.kind, {})[total] = count
    registered = {job: definition.schedule is not None for job, definition in definitions.items() if job in shown}
    steps = islice(((job, step.name) for job in registered for step in definitions[job].own_steps()), MAX_FIRST_STEPS)

    def counter(metric: Metric, kind: Kind, key: Callable[[Total], Key], zeros: Iterable[Key]) -> Family:
        values = dict.fromkeys(zeros, 0)
        is_of_job = "job" in metric.labels
        values |= {key(total): count for total, count in by_kind.get(kind, {}).items() if bool(total.job) == is_of_job}
        family = metric.counter(prefix)
        for labels, count in values.items():
            family.add_metric(labels, count)
        return family

    def histogram(metric: Metric, kind: Kind, sum_kind: Kind, owners: Iterable[str]) -> Family:
        counts: dict[str, dict[str, int]] = {owner: {} for owner in owners}
        for total, count in by_kind.get(kind, {}).items():
            counts.setdefault(total.job, {})[total.label] = count
        sums = {total.job: count for total, count in by_kind.get(sum_kind, {}).items()}
        family = metric.histogram(prefix)
        for owner, of_owner in counts.items():
            labels = (owner,) if metric.labels else ()
            family.add_metric(labels, _buckets(kind, of_owner), sums.get(owner, 0) / 1_000)
        return family

    of_job: Sequence[Key] = [(job,) for job in registered]
    return [
        counter(
            catalog.JOB_EXECUTIONS,
            "executions",
            lambda total: (total.job, total.status, total.label),
            (key for job, has_schedule in registered.items() for key in _first_executions(job, has_schedule)),
        ),
        counter(catalog.JOB_RETRIES, "retries", lambda total: (total.job,), of_job),
        counter(catalog.JOB_DEAD_LETTERS, "dead_letters", lambda total: (total.job,), of_job),
        counter(
            catalog.STEPS,
            "steps",
            lambda total: (total.job, total.label, total.status),
            ((*step, status) for step in steps for status in _STEP_ENDS),
        ),
        histogram(catalog.DURATION, "duration", "duration_ms", registered),
        counter(
            catalog.EXECUTIONS,
            "executions",
            lambda total: (total.status, total.label),
            ((status, trigger) for status in _STATUSES for trigger in _TRIGGERS),
        ),
        counter(catalog.RETRIES, "retries", lambda _: (), [()]),
        counter(catalog.DEAD_LETTERS, "dead_letters", lambda _: (), [()]),
        histogram(catalog.LATENESS, "lateness", "lateness_ms", [""]),
        counter(
            catalog.MISSED,
            "missed",
            lambda total: (total.job, total.label),
            ((job, reason) for job, has_schedule in registered.items() if has_schedule for reason in MISSED_REASONS),
        ),
        counter(catalog.RECOVERED, "recovered", lambda _: (), [()]),
        counter(catalog.LOST, "lost", lambda total: (total.label,), ((what,) for what in _LOST)),
        counter(catalog.ABANDONED, "abandoned", lambda _: (), [()]),
        catalog.LEFT_OUT.gauge(prefix, [((), len(jobs) - len(shown))]),
    ]


def _named(totals: Mapping[Total, int], registered: Container[str]) -> dict[Total, int]:
    ran = {total.job for total in totals if total.kind == "executions" and total.status != "skipped"}
    named: dict[Total, int] = {}
    for total, count in totals.items():
        is_known = not total.job or total.job in ran or total.job in registered
        name = total if is_known else total._replace(job=OTHER)
        named[name] = named.get(name, 0) + count
    return named


def _first_executions(job: str, has_schedule: bool) -> Iterator[Key]:  # noqa: FBT001 - a value of a mapping
    """Return the labels of a job that has not run: failures, and ends by schedule."""
    yield from ((job, "failed", trigger) for trigger in _TRIGGERS)
    if has_schedule:
        yield from ((job, status, "cron") for status in _STATUSES if status != "failed")


def _buckets(kind: Kind, counts: Mapping[str, int]) -> list[tuple[str, float]]:
    bounds = {*(f"{bound:g}" for bound in BUCKETS_S[kind]), NO_BOUND, *counts}
    buckets, sum_ = list[tuple[str, float]](), 0
    for bound in sorted(bounds, key=float):
        sum_ += counts.get(bound, 0)
        buckets.append((bound, sum_))
    return buckets
