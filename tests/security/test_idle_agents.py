"""A worker account that invents processes delays the tasks of others by a bounded number of claims."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.security.test_worker_claims import stages
from tests.system.running import Running
from tocsin import Worker, bootstrap
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.domain.agent import HoldList
from tocsin.domain.events import Completed, Started
from tocsin.domain.token_bucket import TokenBucket
from tocsin.stages.matcher import trials

INVENTED: Final = 50
TASKS: Final = 30
BUCKET: Final = TokenBucket(limit=1, per=5.0, burst=20)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


async def claims_of(tocsin: Running, name: str) -> int:
    """Return the number of tasks that went to agents of a name."""
    return sum(claim.worker == name for claim in await tocsin.of_executions("job", Started))


@pytest.mark.parametrize("listens", [False, True])
async def test_invented_agents_get_few_tasks(
    listens: bool,  # noqa: FBT001 - a parameter
    secured: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invented processes with many free slots do not listen, or ignore their tasks."""
    monkeypatch.setattr(trials, "OF_NAME", BUCKET)
    worker, ids = Worker(concurrency=2), [f"01890f3e-0000-7000-8000-{number:012x}" for number in range(INVENTED)]
    worker.task("pass")(lambda _: "passed")

    async def invent(channel: NatsAgentChannel) -> None:
        for number in count(1):
            hold_list = HoldList(
                number=number, mode="enabled", queues=("default",), functions=("pass",), max_concurrent_jobs=1_000
            )
            for agent_id in ids:
                await channel.announce("mail", agent_id, hold_list.model_dump_json().encode())
            await asyncio.sleep(0.05)

    async with (
        stages(secured, tmp_path) as tocsin,
        connected(secured, tmp_path, "worker") as mine,
        connected(secured, tmp_path, "worker-mail") as hostile,
        bootstrap.worker_connection(mine, worker.options) as connection,
    ):
        tocsin.patience = 60.0
        channel = NatsAgentChannel(hostile.connection, hostile.names)
        if listens:
            await hostile.connection.client.subscribe("tocsin.task.mail.>")
        inventing, serving = asyncio.create_task(invent(channel)), asyncio.create_task(worker.serve(connection))
        await tocsin.apply({"name": "job", "function": "pass", "overlap_policy": "allow"})
        began = asyncio.get_running_loop().time()
        for _ in range(TASKS):
            await tocsin.trigger("job")
        await tocsin.ended("job", Completed, TASKS)
        seconds = asyncio.get_running_loop().time() - began
        assert not inventing.done()
        assert 0 < await claims_of(tocsin, "mail") <= BUCKET.burst + seconds / BUCKET.per + 1
        inventing.cancel()
        worker.stop()
        await asyncio.gather(inventing, serving, return_exceptions=True)
