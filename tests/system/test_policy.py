"""The scheduler policy on a real nats-server: the stages obey a change without a restart."""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.services.health.test_status import program
from tests.system.running import Running, running
from tocsin import Context, Worker
from tocsin.domain.events import Completed, PolicyDefined, Started

OLD = datetime.now(UTC) - timedelta(days=2)


async def ask(tocsin: Running, *args: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    result = await program(tocsin.settings, *args, "-o", "json")
    assert result.returncode == code, result.stdout + result.stderr
    return json.loads(result.stderr if code else result.stdout)


async def test_matcher_obeys_a_changed_ceiling(nats_url: str, tmp_path: Path) -> None:
    worker, may_end = Worker(name="team-1", concurrency=9), asyncio.Event()

    @worker.task("load")
    async def load(_: Context) -> None:
        await may_end.wait()

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({"name": "loads", "function": "load", "overlap_policy": "allow"})

        async def has_started(number: int) -> int:
            await tocsin.ended("loads", Started, number)
            return len(await tocsin.of_executions("loads", Started))

        assert (await ask(tocsin, "policy", "set", "max_concurrent_jobs=2"))["changed"] is True
        for _ in range(6):
            await tocsin.trigger("loads")
        assert await has_started(2) == 2
        await ask(tocsin, "policy", "set", "max_concurrent_jobs=4")
        assert await has_started(4) == 4
        may_end.set()
        await tocsin.ended("loads", Completed, 6)
        trail = await ask(tocsin, "events", "audit-trail")
        assert [row["audit"]["type"] for row in trail].count("POLICY_DEFINED") == 2
        assert len(await tocsin.facts("policy.>", PolicyDefined)) == 2
        audited = await program(tocsin.settings, "audit")
        assert audited.returncode == 0, audited.stdout


async def test_longer_timeout_is_refused(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: [{name: a, function: f, timeout: 2h}]")
    async with running(nats_url, tmp_path, stages=("registrar",)) as tocsin:
        await ask(tocsin, "policy", "set", "job_timeout=1h")
        for command in (
            ("jobs", "apply", "-f", str(file)),
            ("sql", "CREATE JOB a SCHEDULE = '@daily' TIMEOUT = 2h FUNCTION 'f'"),
        ):
            error = (await ask(tocsin, *command, code=2))["error"]
            assert (error["error_code"], "above the ceiling of 1h" in error["message"]) == ("invalid-definition", True)
        assert await ask(tocsin, "jobs", "list") == []


@pytest.mark.full
async def test_history_obeys_the_policy(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(name="team-1")

    @worker.task("load")
    async def load(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker, archive={"interval": 1}) as tocsin:
        await tocsin.apply({"name": "loads", "function": "load", "overlap_policy": "allow"})
        listed = ("executions", "list", "--job", "loads")

        async def runs(number: int) -> list[dict[str, Any]]:
            await tocsin.trigger("loads")
            await tocsin.ended("loads", Completed, number)

            async def is_recorded() -> bool:
                history = (await ask(tocsin, "status"))["history"]
                return bool(history["place"] >= history["newest"])

            await tocsin.until(is_recorded)
            rows: list[dict[str, Any]] = await ask(tocsin, *listed)
            return rows

        assert len(await runs(1)) == 1
        await ask(tocsin, "policy", "set", "enable_job_history=false")
        assert len(await runs(2)) == 1
        await ask(tocsin, "policy", "set", "enable_job_history=true")
        assert len(await runs(3)) == 2

        with closing(sqlite3.connect(tmp_path / "history.db")) as database, database:
            database.execute(
                "UPDATE scheduler_executions SET scheduled_time = ?, completed_at = ?", (str(OLD), str(OLD))
            )
        await ask(tocsin, "policy", "set", "job_history_retention_days=1")

        async def is_expired() -> bool:
            return not await ask(tocsin, *listed)

        await tocsin.until(is_expired)
        audited = await program(tocsin.settings, "audit")
        assert audited.returncode == 0, audited.stdout
