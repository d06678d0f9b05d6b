"""DBOS on PostgreSQL: workflows without steps, through a queue with its defaults.

The queue polls every second, and its client enqueues. Its scheduler wakes up to a tenth of the wait late, at most 10 s: that is its
own rule against a thundering herd.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client
from benchmarks.peers.starts import record

DISTRIBUTIONS: Final = ("dbos",)
SERVER: Final = "postgresql"
NOTE: Final = ""
PREPARES: Final = True
PARTS: Final = ("worker",)
PARTS_THAT_SCHEDULE: Final = ()
TASK: Final = "no-op"
QUEUE: Final = "tasks"
SEES_SCHEDULES: Final = 5.0
"""Seconds until its scheduler sees the jobs of W1; the default is 30."""


def run(part: str, assignment: Assignment) -> None:
    """Create the schema, then run the worker."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "peer",
            "system_database_url": assignment.url,
            "log_level": "WARNING",
            "application_version": "1",
            "scheduler_polling_interval_sec": SEES_SCHEDULES,
        }
    )
    DBOS.workflow(name=TASK)(record)
    scheduled = DBOS.workflow(name="scheduled")(_scheduled)
    DBOS.launch()
    DBOS.register_queue(QUEUE)
    if part == "worker":
        _work(DBOS, scheduled, assignment)
    DBOS.destroy()


@asynccontextmanager
async def client(assignment: Assignment) -> AsyncIterator[Client]:
    """Enqueue by `DBOSClient`."""
    from dbos import DBOSClient

    it = DBOSClient(system_database_url=assignment.url)
    yield _Client(it, assignment.url)
    it.destroy()


class _Client:
    def __init__(self, it: Any, url: str) -> None:
        import psycopg

        self._client = it
        self._database: Any = psycopg.connect(url, autocommit=True)

    async def enqueue(self, key: str) -> None:
        await self._client.enqueue_async({"workflow_name": TASK, "queue_name": QUEUE}, key)

    async def completed(self) -> int:
        query = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS' AND name = %s"
        return int(self._database.execute(query, [TASK]).fetchone()[0])


def _scheduled(_: datetime, job: str) -> None:
    record(job)


def _work(dbos: Any, scheduled: object, assignment: Assignment) -> None:
    if jobs := assignment.jobs:
        what = {"workflow_fn": scheduled, "schedule": assignment.cron}
        dbos.apply_schedules([{**what, "schedule_name": job, "context": job} for job in jobs])
    signal.sigwait({signal.SIGTERM})
