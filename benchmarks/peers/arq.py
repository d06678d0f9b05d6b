"""arq: Redis as queue and as store of results, with one polling worker.

The worker polls every 0.5 s, its default. It runs 256 jobs concurrently, as Tocsin's worker does here: with its default of 10 it
reads 100 per poll, which is 200 a second. By default its cron jobs start 123 ms after the second; so they do here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client
from benchmarks.peers.starts import record

DISTRIBUTIONS: Final = ("arq", "redis")
SERVER: Final = "redis"
NOTE: Final = ""
PREPARES: Final = False
PARTS: Final = ("worker",)
PARTS_THAT_SCHEDULE: Final = ()
TASK: Final = "no_op"
CONCURRENCY: Final = 256
CONNECTIONS: Final = 1_024
"""No limit, as arq expects; newer Redis clients have a pool of 100 and fail beyond it."""


async def no_op(_: dict[str, Any], key: str) -> None:
    """The task."""
    record(key)


async def _unbounded(context: dict[str, Any]) -> None:
    context["redis"].connection_pool.max_connections = CONNECTIONS


def run(_: str, assignment: Assignment) -> None:
    """Run the worker, which also has the cron jobs."""
    from arq.connections import RedisSettings
    from arq.cron import cron
    from arq.worker import Worker

    at = assignment.instant
    when = {"month": at.month, "day": at.day, "hour": at.hour, "minute": at.minute}
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(
        functions=[no_op],
        cron_jobs=[cron(_of(job), name=job, **when) for job in assignment.jobs],
        redis_settings=RedisSettings.from_dsn(assignment.url),
        max_jobs=CONCURRENCY,
        on_startup=_unbounded,
        timezone=at.tzinfo,
    ).run()


@asynccontextmanager
async def client(assignment: Assignment) -> AsyncIterator[Client]:
    """Enqueue by `enqueue_job`."""
    from arq.connections import RedisSettings, create_pool

    pool = await create_pool(RedisSettings.from_dsn(assignment.url))
    await _unbounded({"redis": pool})
    yield _Client(pool)
    await pool.aclose()


class _Client:
    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._results: list[str] = []

    async def enqueue(self, key: str) -> None:
        job = await self._pool.enqueue_job(TASK, key)
        self._results.append(f"arq:result:{job.job_id}")

    async def completed(self) -> int:
        return int(await self._pool.exists(*self._results))


def _of(job: str) -> Callable[[dict[str, Any]], Coroutine[Any, Any, None]]:
    async def fire(_: dict[str, Any]) -> None:
        record(job)

    return fire
