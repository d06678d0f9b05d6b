"""The metrics of an installation in Prometheus' text format, under hip-62's names (Integration with O11y).

Counters are the totals of the history, so every copy of the API exports the same numbers, also after a restart. Combine the
copies with `max without (instance)`. A part that cannot be read is left out: `metrics_part_up` says so. `leader_active` exists
only while a ticker leads, because hip-62's alert tests for its absence.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final, TypeAlias, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .... import telemetry
from ....domain import daily_use
from ....domain.definition import JobDefinition
from ....domain.events import MISSED_REASONS, TriggerKind
from ....domain.queue_backlog import QueueBacklog
from ....domain.totals import BUCKETS_S, NO_BOUND, OTHER, Kind, Total
from ....ports import HistoryIncomplete
from ....services.agents import backlogs
from ....services.health.status import Status
from ....services.jobs import Job
from ....services.namespaces import Namespaces, uses_of
from ....services.queue_decisions import pauses_of
from ....settings import Settings
from ....subjects import TICKER_LEASE, Bucket
from ..api.dependencies import Components
from . import catalog
from .catalog import Family, Metric

MAX_QUEUES: Final = 500
"""Queues with series of their own."""

Key: TypeAlias = tuple[str, ...]


def own_series(queues: Iterable[str], settings: Settings) -> frozenset[str]:
    """Return the queues with series of their own, the queues of the settings first."""
    configured = {*settings.matched_queues, *settings.bridged_queues}
    return frozenset(sorted(queues, key=lambda queue: (queue not in configured, queue))[:MAX_QUEUES])


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
    """Return a gauge of queues, with one value for all hidden queues."""
    combined: dict[Key, float] = {}
    for (queue, *labels), value in samples:
        key = (queue if queue in shown else OTHER, *labels)
        combined[key] = combine(combined[key], float(value)) if key in combined else float(value)
    return metric.family(catalog.OWN_PREFIX, combined.items())


MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REFRESH_INTERVAL_S: Final = 5.0
_LOCK: Final = "scheduler.lock."

_log = telemetry.get_logger("tocsin.metrics")


class Metrics:
    """Reads the metrics of an installation, at most once in `REFRESH_INTERVAL_S`."""

    def __init__(
        self,
        parts: Components,
        prefix: str,
        *,
        max_jobs: int,
        observe: Callable[[], Awaitable[Status]] | None = None,
        process: CollectorRegistry | None = None,
    ) -> None:
        """Begin the names of hip-62 with `prefix`. Jobs beyond `max_jobs` have no series.

        `observe` returns the status of the installation; None: it has none. `process`: the metrics of this process, which
        follow those of the installation.
        """
        self._process = process
        self._parts = parts
        self._prefix = prefix
        self._max_jobs = max_jobs
        self._text = b""
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._readers: dict[str, Callable[[], Awaitable[list[Family]]]] = {
            "jobs": self._jobs,
            "locks": self._locks,
            "leader": self._leader,
            "queues": self._queues,
            "namespaces": self._namespaces,
            "totals": self._totals,
        }
        if observe is not None:
            self._readers["status"] = partial(self._status, observe)

    async def text(self) -> bytes:
        async with self._reading:
            now = self._parts.clock.monotonic()
            if self._read_at is None or now - self._read_at >= REFRESH_INTERVAL_S:
                families = await self._families()
                self._text = await asyncio.to_thread(generate_latest, _Families(families))
                self._read_at = now
        return self._text if self._process is None else self._text + generate_latest(self._process)

    async def _families(self) -> list[Family]:
        answers = await asyncio.gather(*(reader() for reader in self._readers.values()), return_exceptions=True)
        families, is_up = list[Family](), list[tuple[Key, bool]]()
        for part, answer in zip(self._readers, answers, strict=True):
            is_up.append(((part,), not isinstance(answer, Exception)))
            if isinstance(answer, Exception):
                _log.warning("metrics of a part could not be read", action="metrics-part", part=part, error=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                families += answer
        return [*families, catalog.PARTS.family(self._prefix, is_up)]

    async def _jobs(self) -> list[Family]:
        now = self._parts.clock.now()
        jobs = await self._oldest_first()
        shown = jobs[: self._max_jobs]
        next_times = await self._parts.calculations.run(
            lambda _: [(job.name, job.next_fire_time(now)) for job in shown]
        )
        return [
            catalog.JOBS.family(self._prefix, [((), len(jobs))]),
            catalog.NEXT_FIRE.family(
                self._prefix,
                (((name,), (time - now).total_seconds()) for name, time in next_times if time is not None),
            ),
            catalog.REGISTERED.family(self._prefix, (((job.name,), job.created_at.timestamp()) for job in shown)),
        ]

    async def _locks(self) -> list[Family]:
        holding = {key.removeprefix(_LOCK) for key in await self._parts.projections.entries(Bucket.LOCKS)}
        registered = [job.name for job in await self._oldest_first()]
        others = sorted(holding.difference(registered))  # a deleted job may still run
        shown = [*registered, *others][: self._max_jobs]
        return [catalog.LOCKS.family(self._prefix, (((name,), 1) for name in shown if name in holding))]

    async def _leader(self) -> list[Family]:
        is_led = await self._parts.projections.get(Bucket.LEADER, TICKER_LEASE) is not None
        return [catalog.LEADER.family(self._prefix, [((TICKER_LEASE,), 1)] if is_led else [])]

    async def _queues(self) -> list[Family]:
        known = await backlogs(self._parts.projections)
        shown = own_series(known, self._parts.settings)
        paused = await pauses_of(self._parts.log, [name for name in shown if known[name].waiting])
        tasks, waiting = dict[Key, float](), dict[Key, float]()
        for queue, backlog in known.items():
            numbers = {"waiting": backlog.waiting, "running": backlog.running, "held_back": backlog.all_held_back}
            tasks |= {(queue, state): number for state, number in numbers.items()}
            causes = reasons(backlog, is_paused=queue in paused)
            waiting |= {(queue, reason): number for reason, number in causes.items()}
        return [
            gauge(catalog.QUEUE_TASKS, tasks.items(), shown),
            gauge(catalog.QUEUE_WAITING, waiting.items(), shown),
        ]

    async def _namespaces(self) -> list[Family]:
        declared = (await Namespaces(self._parts.log).newest()).namespaces
        limited = {each.name: each for each in declared if daily_use.has_daily_quota(each)}
        uses = await uses_of(self._parts.projections, [*limited], self._parts.clock.now())
        used = [
            ((name, field), number)
            for name, use in uses.items()
            for field, number in (("executions_per_day", use.executions), ("bytes_per_day", use.bytes))
            if getattr(limited[name], field) is not None
        ]
        quotas = [((name, field), getattr(limited[name], field)) for (name, field), _ in used]
        return [catalog.NAMESPACE_QUOTA.family(self._prefix, quotas), catalog.NAMESPACE_USE.family(self._prefix, used)]

    async def _status(self, observe: Callable[[], Awaitable[Status]]) -> list[Family]:
        seen = await observe()
        shown = own_series((queue.name for queue in seen.queues), self._parts.settings)
        return _of_status(seen, self._prefix, shown)

    async def _totals(self) -> list[Family]:
        stored = await self._parts.history.totals()
        if stored is None:
            raise HistoryIncomplete("the history is being rebuilt")
        definitions = {job.name: job.definition for job in await self._oldest_first()}
        return await asyncio.to_thread(counters, stored, definitions, self._prefix, max_jobs=self._max_jobs)

    async def _oldest_first(self) -> list[Job]:
        """Return the registered jobs; the oldest keep their series."""
        return sorted(await self._parts.registry.jobs(), key=lambda job: (job.created_at, job.name))


def _of_status(status: Status, prefix: str, shown: Collection[str]) -> list[Family]:
    """Return the gauges; a part that did not answer has none. `shown`: queues with series."""

    def age(since: datetime | None) -> float:
        return 0.0 if since is None else max(0.0, (status.at - since).total_seconds())

    streams = [stream for stream in status.streams.values() if stream is not None]
    history = [] if status.history is None else [((), age(status.history.since))]
    behind = [] if status.history is None else [((), max(0, status.history.newest - status.history.place))]
    kinds = {"agent": status.agents or {}, **status.outside_workers}
    durables = {(each.state.stream, each.state.name): each for each in status.durables}
    pending = {labels: each.state.pending + each.state.ack_pending for labels, each in durables.items()}
    samples: dict[Metric, Iterable[tuple[Key, float]]] = {
        catalog.LEASE_RENEWAL: (((lease.name,), age(lease.renewed_at)) for lease in status.leases or ()),
        catalog.ASIDE: [((), len(status.standing_aside))],
        catalog.WORKERS: (((kind, state), number) for kind, of in kinds.items() for state, number in of.items()),
        catalog.HISTORY_LAG: history,
        catalog.HISTORY_BEHIND: behind,
        catalog.DURABLE_MESSAGES: pending.items(),
        catalog.DURABLE_OLDEST: ((labels, age(each.oldest)) for labels, each in durables.items()),
        catalog.STREAM_BYTES: (((stream.name,), stream.bytes) for stream in streams),
        catalog.STREAM_MAX_BYTES: (((stream.name,), stream.max_bytes) for stream in streams if stream.max_bytes > 0),
        catalog.UNREADABLE_EVENTS: [((), sum(report.is_unreadable for report in status.foreign))],
        catalog.UNKNOWN_PARTS: [((), len(status.troubles))],
    }
    oldest = (((queue.name,), age(queue.oldest)) for queue in status.queues)
    return [
        gauge(catalog.QUEUE_OLDEST, oldest, shown, combine=max),
        gauge(catalog.QUEUE_WORKERS, (((queue.name,), queue.executors) for queue in status.queues), shown),
        *(metric.family(prefix, each) for metric, each in samples.items()),
    ]


class _Families(list[Family], Collector):
    def collect(self) -> Iterator[Family]:
        yield from self


def metrics_app(metrics: Metrics) -> Starlette:
    """Return the application for the port of the metrics and the probe `/livez`."""

    async def export(_: Request) -> Response:
        return Response(await metrics.text(), media_type=MEDIA_TYPE)

    async def is_alive(_: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    app = Starlette(routes=[Route("/metrics", export), Route("/livez", is_alive)])
    app.state.closing = asyncio.Event()
    return app


_STATUSES: Final = ("completed", "failed", "cancelled", "skipped")
_TRIGGERS: Final[tuple[str, ...]] = get_args(TriggerKind)
MAX_FIRST_STEPS: Final = 10_000
"""Steps that have series before they run, those of the oldest jobs. Others have theirs from their first end on."""


def counters(
    totals: Mapping[Total, int], definitions: Mapping[str, JobDefinition], prefix: str, *, max_jobs: int
) -> list[Family]:
    """Return the counters, from the totals of the history.

    Every registered job has its series from its registration on, at zero, because `increase()` does not see the first value of a series.
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
        return metric.family(prefix, values.items())

    def histogram(metric: Metric, kind: Kind, sum_kind: Kind, owners: Iterable[str]) -> Family:
        counts: dict[str, dict[str, int]] = {owner: {} for owner in owners}
        for total, count in by_kind.get(kind, {}).items():
            counts.setdefault(total.job, {})[total.label] = count
        sums = {total.job: count for total, count in by_kind.get(sum_kind, {}).items()}
        return metric.family(
            prefix,
            (
                ((owner,) if metric.labels else (), _buckets(kind, of_owner), sums.get(owner, 0) / 1_000)
                for owner, of_owner in counts.items()
            ),
        )

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
            ((*step, status) for step in steps for status in ("completed", "failed")),
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
        counter(catalog.LOST, "lost", lambda total: (total.label,), ((what,) for what in ("planned", "admitted"))),
        counter(catalog.ABANDONED, "abandoned", lambda _: (), [()]),
        catalog.LEFT_OUT.family(prefix, [((), len(jobs) - len(shown))]),
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
