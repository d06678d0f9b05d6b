"""Operators pause and purge a queue that the MQ bridge serves: a real nats-server, all stages, the command line."""

from pathlib import Path
from typing import Any

import pytest

from tests.services.health.test_status import program
from tests.system.test_mq import outside
from tests.system.test_queues import queues
from tocsin.domain.events import Admitted, Cancelled, Completed, Started

TASKS = 3


@pytest.mark.timeout(300)  # each command is a process of its own
@pytest.mark.full
async def test_pause_and_purge_cover_the_bridge(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        await tocsin.apply({"name": "mails", "function": "load", "overlap_policy": "allow"})

        async def counted(*wanted: int) -> dict[str, Any]:
            async def as_wanted() -> dict[str, Any]:
                details = await queues(tocsin, "show", "default")
                return details if wanted == tuple(map(details.get, ("waiting", "handed_over", "taken"))) else {}

            return await tocsin.until(as_wanted)

        assert (await queues(tocsin, "pause", "default", "--reason", "deploy"))["changed"] is True
        for _ in range(TASKS):
            await tocsin.trigger("mails")
        details = await counted(TASKS, 0, 0)
        assert details["paused"]["reason"] == "deploy"
        assert details["oldest"] is not None
        assert await tocsin.of_executions("mails", Started) == []
        execution = (await tocsin.of_executions("mails", Admitted))[0].execution_id
        assert "queue default is paused by" in (await program(tocsin.settings, "executions", "show", execution)).stdout

        assert (await queues(tocsin, "purge", "default", "--dry-run"))["waiting"] == TASKS
        assert (await queues(tocsin, "purge", "default", "--yes", "--reason", "wrong list"))["waiting"] == TASKS
        ends = await tocsin.ended("mails", Cancelled, TASKS)
        assert {end.reason for end in ends} == {"queue default purged: wrong list"}

        await tocsin.trigger("mails")
        await queues(tocsin, "resume", "default")
        await counted(1, 1, 0)
        answer = await queues(tocsin, "purge", "default", "--yes")
        assert answer == {"queue": "default", "waiting": 0, "changed": True, "dry_run": False}
        task = await executor.take()
        await counted(0, 0, 0)
        await executor.answer(f"mails.{task['execution_id']}", {"status": "completed"})
        await tocsin.ended("mails", Completed)
        assert len(await tocsin.of_executions("mails", Cancelled)) == TASKS
