"""Celery: Redis as broker and store of results, late acknowledgement, beat for W1.

It runs as many worker processes as processors.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client
from benchmarks.peers.starts import record

DISTRIBUTIONS: Final = ("celery", "redis")
SERVER: Final = "redis"
NOTE: Final = ""
PREPARES: Final = False
PARTS: Final = ("worker",)
PARTS_THAT_SCHEDULE: Final = ("beat",)
TASK: Final = "no-op"


def run(part: str, assignment: Assignment) -> None:
    """Run the worker, or beat."""
    app, options = _app(assignment), ["--loglevel", "warning"]
    if part == "worker":
        app.worker_main(["worker", *options])
    else:
        app.start(["beat", *options, "--schedule", str(assignment.folder / "beat")])


@asynccontextmanager
async def client(assignment: Assignment) -> AsyncIterator[Client]:
    """Enqueue by `apply_async`."""
    yield _Client(_app(assignment))


class _Client:
    def __init__(self, app: Any) -> None:
        self._backend, self._task = app.backend, app.tasks[TASK]
        self._results: list[Any] = []

    async def enqueue(self, key: str) -> None:
        self._results.append(self._task.apply_async((key,)))

    async def completed(self) -> int:
        keys = [self._backend.get_key_for_task(result.id) for result in self._results]
        return int(self._backend.client.exists(*keys))


def _app(assignment: Assignment) -> Any:
    from celery import Celery
    from celery.schedules import crontab

    app = Celery("peer", broker=assignment.url, backend=assignment.url)
    app.conf.task_acks_late = True
    app.task(name=TASK)(record)
    at = assignment.instant
    schedule = crontab(minute=at.minute, hour=at.hour, day_of_month=at.day, month_of_year=at.month)
    app.conf.beat_schedule = {job: {"task": TASK, "schedule": schedule, "args": (job,)} for job in assignment.jobs}
    return app
