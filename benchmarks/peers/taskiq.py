"""taskiq over NATS JetStream (taskiq-nats): a pull consumer, no results.

The worker has its defaults: two processes, 100 concurrent tasks. A task is done when JetStream has its acknowledgement. W1 runs
`taskiq scheduler` on the labels of the task.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client
from benchmarks.peers.starts import record_async

DISTRIBUTIONS: Final = ("taskiq", "taskiq-nats")
SERVER: Final = "nats"
NOTE: Final = "stores no completion but the acknowledgement"
PREPARES: Final = False
PARTS: Final = ("worker",)
PARTS_THAT_SCHEDULE: Final = ("scheduler",)
TASK: Final = "no-op"


def run(part: str, _: Assignment) -> None:
    """Run `taskiq worker` or `taskiq scheduler`."""
    from taskiq.__main__ import main

    what = {"worker": "broker", "scheduler": "scheduler"}[part]
    sys.argv = ["taskiq", part, f"{__name__}:{what}", "--log-level", "WARNING"]
    main()


@asynccontextmanager
async def client(_: Assignment) -> AsyncIterator[Client]:
    """Enqueue by `kiq`."""
    it = broker()
    await it.startup()
    yield _Client(it)
    await it.shutdown()


class _Client:
    def __init__(self, it: Any) -> None:
        self._broker, self._task = it, it.find_task(TASK)

    async def enqueue(self, key: str) -> None:
        await self._task.kiq(key)

    async def completed(self) -> int:
        info = await self._broker.js.consumer_info(self._broker.stream_name, self._broker.durable)
        return int(info.ack_floor.stream_seq)


def broker() -> Any:
    """Return the broker with its task."""
    from taskiq_nats import PullBasedJetStreamBroker

    assignment = Assignment.received()
    it = PullBasedJetStreamBroker(assignment.url)
    it.task(TASK, schedule=[{"cron": assignment.cron, "args": [job]} for job in assignment.jobs])(record_async)
    return it


def scheduler() -> Any:
    """Return the object that `taskiq scheduler` runs."""
    from taskiq import TaskiqScheduler
    from taskiq.schedule_sources import LabelScheduleSource

    it = broker()
    return TaskiqScheduler(it, sources=[LabelScheduleSource(it)])
