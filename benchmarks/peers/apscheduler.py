"""APScheduler 3 with its SQLAlchemy store on SQLite, in one process.

The scheduler runs in the program that adds the jobs. It stores no completion; a task is done when the scheduler reports it
(`EVENT_JOB_EXECUTED`). With its default grace of one second it drops tasks that are later than that; here nothing is too late, so
that the lag shows and not the loss.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client

DISTRIBUTIONS: Final = ("apscheduler", "sqlalchemy")
SERVER: Final = ""
NOTE: Final = "one process; stores no completion"
PREPARES: Final = False
PARTS: Final = ()
PARTS_THAT_SCHEDULE: Final = ()
TASK: Final = "benchmarks.peers.starts:record"


def run(part: str, _: Assignment) -> None:
    """Do nothing: the client is the only process."""
    raise ValueError(f"there is no part {part}")


@asynccontextmanager
async def client(assignment: Assignment) -> AsyncIterator[Client]:
    """Run the scheduler in its background thread, with ten threads for the work."""
    from apscheduler.events import EVENT_JOB_EXECUTED
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.background import BackgroundScheduler
    from apscheduler.triggers.cron import CronTrigger

    scheduler = BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(url=f"sqlite:///{assignment.folder / 'jobs.db'}")},
        job_defaults={"misfire_grace_time": None},
        timezone="UTC",
    )
    it = _Client(scheduler)
    scheduler.add_listener(it.hear, EVENT_JOB_EXECUTED)
    scheduler.start()
    for job in assignment.jobs:
        scheduler.add_job(TASK, CronTrigger.from_crontab(assignment.cron, "UTC"), args=[job], id=job)
    yield it
    scheduler.shutdown()


class _Client:
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._executed: list[str] = []

    async def enqueue(self, key: str) -> None:
        self._scheduler.add_job(TASK, args=[key])

    async def completed(self) -> int:
        return len(self._executed)

    def hear(self, event: Any) -> None:
        self._executed.append(event.job_id)
