"""procrastinate on PostgreSQL, woken by LISTEN/NOTIFY, with one worker.

The worker runs ten tasks concurrently and enqueues periodic tasks.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client
from benchmarks.peers.starts import record, record_async

DISTRIBUTIONS: Final = ("procrastinate",)
SERVER: Final = "postgresql"
NOTE: Final = ""
PREPARES: Final = True
PARTS: Final = ("worker",)
PARTS_THAT_SCHEDULE: Final = ()
TASK: Final = "no-op"
CONCURRENCY: Final = 10


def run(part: str, assignment: Assignment) -> None:
    """Create the schema, then run the worker."""
    app = _app(assignment)
    if part == "prepare":
        with app.open():
            app.schema_manager.apply_schema()
    else:
        app.run_worker(concurrency=CONCURRENCY)


@asynccontextmanager
async def client(assignment: Assignment) -> AsyncIterator[Client]:
    """Enqueue by `defer_async`."""
    app = _app(assignment)
    async with app.open_async():
        yield _Client(app)


class _Client:
    def __init__(self, app: Any) -> None:
        self._connector, self._task = app.connector, app.tasks[TASK]

    async def enqueue(self, key: str) -> None:
        await self._task.defer_async(key=key)

    async def completed(self) -> int:
        query = "SELECT count(*) AS number FROM procrastinate_jobs WHERE status = 'succeeded'"
        return int((await self._connector.execute_query_one_async(query))["number"])


async def periodic(timestamp: int, job: str) -> None:  # noqa: ARG001 - it is passed by name
    """The task of a job of W1."""
    record(job)


def _app(assignment: Assignment) -> Any:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=assignment.url))
    app.task(name=TASK)(record_async)
    task = app.task(name="periodic")(periodic)
    for job in assignment.jobs:
        app.periodic(cron=assignment.cron, periodic_id=job, task_kwargs={"job": job})(task)
    return app
