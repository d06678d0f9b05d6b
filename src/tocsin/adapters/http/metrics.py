"""Figures for Prometheus under hip-62's names (Integration with O11y), counted from the log that everybody writes.

Every copy of the API counts the whole log from when it started: add them up over jobs, not over copies (`max without
(instance)`). `leader_active` is told only while somebody leads, since hip-62's alert asks for its absence.
"""

import asyncio
from collections import OrderedDict
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...domain.events import (
    Admitted,
    Advanced,
    Completed,
    DeadLettered,
    Exhausted,
    Failed,
    Message,
    Recorded,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
)
from ...services import tail
from ...subjects import TICKER_LEASE, Bucket
from .api.dependencies import Components

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call] # a series more for each, which nobody asks for

REFRESHED: Final = 5.0
"""Seconds for which what jobs and locks are like is not asked again."""
_BUCKETS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400)
_CAPACITY: Final = 100_000
_LOCK: Final = "scheduler.lock."


class Metrics:
    """Counts what happens, and looks at what is."""

    def __init__(self, parts: Components, prefix: str) -> None:
        """`prefix` stands before every name."""
        self._parts = parts
        self._begun: OrderedDict[str, datetime] = OrderedDict()
        self._refreshed: float | None = None
        self._registry = registry = CollectorRegistry()

        def named(name: str) -> str:
            return f"{prefix}_{name}"

        self._executions = Counter(
            named("executions"), "Executions that are over.", ("job", "status", "trigger"), registry=registry
        )
        self._retries = Counter(named("retries"), "Attempts that will be tried again.", ("job",), registry=registry)
        self._letters = Counter(named("dead_letters"), "Executions that failed for good.", ("job",), registry=registry)
        self._steps = Counter(named("dag_steps"), "Steps that are over.", ("job", "step", "status"), registry=registry)
        self._duration = Histogram(
            named("execution_duration_seconds"),
            "From the first claim to the end.",
            ("job",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._jobs = Gauge(named("jobs_registered"), "Registered jobs.", registry=registry)
        self._next = Gauge(named("next_fire_seconds"), "Seconds until a job fires next.", ("job",), registry=registry)
        self._locks = Gauge(named("lock_held"), "1: an execution holds the job's lock.", ("job",), registry=registry)
        self._leader = Gauge(
            named("leader_active"), "A ticker leads; absent: none does.", ("lease",), registry=registry
        )

    async def run(self) -> None:
        """Count for ever what happens from now on."""
        log = self._parts.log
        async for recorded in tail.follow(log, after=await tail.newest(log)):
            self.count(recorded)

    def count(self, recorded: Recorded[Message]) -> None:
        """Count one fact."""
        fact = recorded.message
        match fact:
            case Started():
                self._begin(fact.execution_id, recorded.time)
            case RetryScheduled():
                self._retries.labels(fact.job).inc()
            case Advanced():
                self._steps.labels(fact.job, fact.step, "completed").inc()
            case Exhausted():
                self._steps.labels(fact.job, fact.step, "failed").inc()
            case DeadLettered():
                self._letters.labels(fact.job).inc()
            case Skipped():
                self._executions.labels(fact.job, "skipped", fact.trigger).inc()
            case Terminal():
                self._end(fact, recorded.time)
            case Admitted() | _:
                pass

    def _begin(self, execution_id: str, at: datetime) -> None:
        self._begun.setdefault(execution_id, at)
        if len(self._begun) > _CAPACITY:
            self._begun.popitem(last=False)

    def _end(self, fact: Terminal, at: datetime) -> None:
        status = getattr(fact, "type", "cancelled")
        self._executions.labels(fact.job, status, fact.trigger).inc()
        begun = self._begun.pop(fact.execution_id, None)
        if begun is not None:
            self._duration.labels(fact.job).observe((at - begun).total_seconds())
        if fact.step is not None and isinstance(fact, Completed | Failed):
            is_done = isinstance(fact, Completed) or fact.step_completed
            self._steps.labels(fact.job, fact.step, "completed" if is_done else "failed").inc()
        for step in fact.cancelled_steps if isinstance(fact, Failed) else ():
            self._steps.labels(fact.job, step, "cancelled").inc()

    async def text(self) -> bytes:
        """The figures as Prometheus reads them."""
        now = self._parts.clock.monotonic()
        if self._refreshed is None or now - self._refreshed >= REFRESHED:
            self._refreshed = now
            await asyncio.gather(self._look_at_jobs(), self._look_at_locks(), self._look_at_leader())
        return generate_latest(self._registry)

    async def _look_at_jobs(self) -> None:
        now = self._parts.clock.now()
        jobs = await self._parts.registry.jobs()
        self._jobs.set(len(jobs))
        self._next.clear()
        for job in jobs:
            if (at := job.next_fire_time(now)) is not None:
                self._next.labels(job.name).set((at - now).total_seconds())

    async def _look_at_locks(self) -> None:
        held = await self._parts.projections.entries(Bucket.LOCKS)
        self._locks.clear()
        for key in held:
            self._locks.labels(key.removeprefix(_LOCK)).set(1)

    async def _look_at_leader(self) -> None:
        self._leader.clear()
        if await self._parts.projections.get(Bucket.LEADER, TICKER_LEASE) is not None:
            self._leader.labels(TICKER_LEASE).set(1)


def metrics_app(metrics: Metrics) -> Starlette:
    """The application of the metrics' own port."""

    async def tell(_: Request) -> Response:
        return Response(await metrics.text(), media_type=MEDIA_TYPE)

    app = Starlette(routes=[Route("/metrics", tell)])
    app.state.closing = asyncio.Event()
    return app
