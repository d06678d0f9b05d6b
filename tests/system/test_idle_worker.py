"""A process that lists its tasks and never works on them, on a real server."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Final

from tests.system.running import running
from tocsin import Worker, bootstrap
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.domain.agent import HoldList
from tocsin.domain.events import Completed, RetryScheduled, Started

THIEF: Final = "thief"
AGENT_ID: Final = "01890f3e-0000-7000-8000-000000000001"
TASKS: Final = 3
JOB: Final = {
    "name": "job",
    "function": "pass",
    "overlap_policy": "allow",
    "timeout": 5,  # the other worker begins meanwhile
    "retry": {"max_attempts": 2, "initial_delay": 0.1},
}


async def test_listed_tasks_end_at_their_timeout(nats_url: str, tmp_path: Path) -> None:
    """The next attempts go to a worker that works, although the process still lists the tasks."""
    worker = Worker(name="honest")
    worker.task("pass")(lambda context: context.attempt)
    async with (
        running(nats_url, tmp_path, recovery={"grace": 1.0}) as tocsin,
        AsyncExitStack() as stack,
    ):
        channel = NatsAgentChannel(tocsin.installation.connection, tocsin.installation.names)

        async def list_tasks() -> None:
            for number in count(1):
                started = [claim for claim in await tocsin.of_executions("job", Started) if claim.worker == THIEF]
                hold_list = HoldList(
                    number=number,
                    mode="enabled",
                    queues=("default",),
                    functions=("pass",),
                    max_concurrent_jobs=TASKS,
                    held=tuple(f"{claim.job}.{claim.execution_id}.{claim.step}.{claim.attempt}" for claim in started),
                )
                await channel.announce(THIEF, AGENT_ID, hold_list.model_dump_json().encode())
                await asyncio.sleep(0.1)

        await stack.enter_async_context(channel.tasks(THIEF, AGENT_ID, lambda _: None))
        listing = asyncio.create_task(list_tasks())
        await tocsin.apply(JOB)
        for _ in range(TASKS):
            await tocsin.trigger("job")
        await tocsin.ended("job", Started, TASKS)
        async with bootstrap.worker_connection(tocsin.installation, worker.options) as connection:
            working = asyncio.create_task(worker.serve(connection))
            completed = await tocsin.ended("job", Completed, TASKS)
            worker.stop()
            await working
        assert not listing.done()
        listing.cancel()
        assert [end.result for end in completed] == [2] * TASKS
        retries = await tocsin.of_executions("job", RetryScheduled)
        assert [(retry.error.type, retry.attempt) for retry in retries] == [("timed_out", 1)] * TASKS
        claims = {(claim.worker, claim.attempt) for claim in await tocsin.of_executions("job", Started)}
        assert claims == {(THIEF, 1), ("honest", 2)}
