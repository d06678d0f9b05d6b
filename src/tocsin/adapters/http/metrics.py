"""Prometheus metrics with hip-62's names (Integration with O11y), counted from the log.

Every copy of the API counts the whole log from its start on. Sum the metrics over jobs, not over copies (`max without
(instance)`). `leader_active` is exported only while a ticker leads, because hip-62's alert tests for its absence.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
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
from ...services.agents import backlogs
from ...services.calculations import CalculationsBusy
from ...subjects import TICKER_LEASE, Bucket
from .api.dependencies import Components

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call] # an extra series for each metric, which no dashboard uses

REFRESH_INTERVAL_S: Final = 5.0
"""How long the figures of jobs, locks and the leader are cached."""
_BUCKETS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400)
_CAPACITY: Final = 100_000
_LOCK: Final = "scheduler.lock."


class Metrics:
    """Counts events, and measures jobs, locks and the leader."""

    def __init__(self, parts: Components, prefix: str) -> None:
        """Begin every metric's name with `prefix`."""
        self._parts = parts
        self._started_at: OrderedDict[str, datetime] = OrderedDict()
        self._refreshed: float | None = None
        self._registry = registry = CollectorRegistry()

        def named(name: str) -> str:
            return f"{prefix}_{name}"

        self._executions = Counter(
            named("executions"), "Executions that ended.", ("job", "status", "trigger"), registry=registry
        )
        self._retries = Counter(named("retries"), "Failed attempts that will be retried.", ("job",), registry=registry)
        self._letters = Counter(
            named("dead_letters"), "Executions that failed permanently.", ("job",), registry=registry
        )
        self._steps = Counter(named("dag_steps"), "Steps that ended.", ("job", "step", "status"), registry=registry)
        self._duration = Histogram(
            named("execution_duration_seconds"),
            "Time from the first claim to the end.",
            ("job",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._jobs = Gauge(named("jobs_registered"), "Registered jobs.", registry=registry)
        self._next = Gauge(named("next_fire_seconds"), "Seconds until a job fires next.", ("job",), registry=registry)
        self._locks = Gauge(named("lock_held"), "1: an execution holds the job's lock.", ("job",), registry=registry)
        self._leader = Gauge(
            named("leader_active"), "A ticker leads; absent: no ticker leads.", ("lease",), registry=registry
        )

        self._tasks = Gauge(
            named("queue_tasks"),
            "Tasks of matched queues: waiting, running, and held_back (waiting because of a limit).",
            ("queue", "state"),
            registry=registry,
        )

    async def run(self) -> None:
        """Count events from now on, until cancelled."""
        log = self._parts.log
        async for recorded in tail.follow(log, after=await tail.newest(log)):
            self.count(recorded)

    def count(self, recorded: Recorded[Message]) -> None:
        """Count an event."""
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
        self._started_at.setdefault(execution_id, at)
        if len(self._started_at) > _CAPACITY:
            self._started_at.popitem(last=False)

    def _end(self, fact: Terminal, at: datetime) -> None:
        status = getattr(fact, "type", "cancelled")
        self._executions.labels(fact.job, status, fact.trigger).inc()
        started_at = self._started_at.pop(fact.execution_id, None)
        if started_at is not None:
            self._duration.labels(fact.job).observe((at - started_at).total_seconds())
        if fact.step is not None and isinstance(fact, Completed | Failed):
            is_done = isinstance(fact, Completed) or fact.step_completed
            self._steps.labels(fact.job, fact.step, "completed" if is_done else "failed").inc()
        for step in fact.cancelled_steps if isinstance(fact, Failed) else ():
            self._steps.labels(fact.job, step, "cancelled").inc()

    async def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        now = self._parts.clock.monotonic()
        if self._refreshed is None or now - self._refreshed >= REFRESH_INTERVAL_S:
            self._refreshed = now
            await asyncio.gather(
                self._measure_jobs(), self._measure_locks(), self._measure_leader(), self._measure_tasks()
            )
        return generate_latest(self._registry)

    async def _measure_jobs(self) -> None:
        now = self._parts.clock.now()
        jobs = await self._parts.registry.jobs()
        self._jobs.set(len(jobs))
        with suppress(CalculationsBusy):  # the other metrics matter most when the server is busy
            next_times = await self._parts.calculations.run(
                lambda _: [(job.name, job.next_fire_time(now)) for job in jobs]
            )
            self._next.clear()
            for name, next_time in next_times:
                if next_time is not None:
                    self._next.labels(name).set((next_time - now).total_seconds())

    async def _measure_locks(self) -> None:
        locks = await self._parts.projections.entries(Bucket.LOCKS)
        self._locks.clear()
        for key in locks:
            self._locks.labels(key.removeprefix(_LOCK)).set(1)

    async def _measure_leader(self) -> None:
        self._leader.clear()
        if await self._parts.projections.get(Bucket.LEADER, TICKER_LEASE) is not None:
            self._leader.labels(TICKER_LEASE).set(1)

    async def _measure_tasks(self) -> None:
        self._tasks.clear()
        for queue, backlog in (await backlogs(self._parts.projections)).items():
            self._tasks.labels(queue, "waiting").set(backlog.waiting)
            self._tasks.labels(queue, "running").set(backlog.running)
            self._tasks.labels(queue, "held_back").set(backlog.all_held_back)


def metrics_app(metrics: Metrics) -> Starlette:
    """Return the application for the port of the metrics."""

    async def export(_: Request) -> Response:
        return Response(await metrics.text(), media_type=MEDIA_TYPE)

    app = Starlette(routes=[Route("/metrics", export)])
    app.state.closing = asyncio.Event()
    return app
