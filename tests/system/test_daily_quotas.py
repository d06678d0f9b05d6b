"""Daily quotas on a real nats-server: two teams, a restart of the stages, results that fill the day, and an audit."""

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.services.health.test_status import program
from tests.system.running import DEADLINE, running
from tests.system.test_policy import ask
from tocsin import Context, Worker
from tocsin.domain.events import Admitted, Completed, Skipped

STAGES = ("registrar", "planner")
NAMES = ("root", "public_prefix", "trigger_prefix", "mq_prefix")
TEAMS = ("payments.mail", "billing.mail")


async def test_quota_holds_over_restarts(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text("namespaces: [{name: payments, executions_per_day: 30}, billing]")
    async with running(nats_url, tmp_path, stages=STAGES) as tocsin:
        await ask(tocsin, "namespaces", "apply", "-f", str(file))
        for job in TEAMS:
            queue = job.replace("mail", "q")
            await tocsin.apply({"name": job, "function": "f", "queue": queue, "overlap_policy": "allow"})
        for _ in range(20):
            await asyncio.gather(*(tocsin.trigger(job) for job in TEAMS))
        await tocsin.ended("payments.mail", Admitted, 20)
        names = {name: getattr(tocsin.settings, name) for name in NAMES}
    async with running(nats_url, tmp_path, stages=STAGES, **names) as tocsin:
        tocsin._ids = count(1_000)  # an id that was used is dropped
        for _ in range(20):
            await asyncio.gather(*(tocsin.trigger(job) for job in TEAMS))
        await tocsin.ended("payments.mail", Skipped, 10)
        await tocsin.ended("billing.mail", Admitted, 40)
        assert len(await tocsin.of_executions("payments.mail", Admitted)) == 30
        skipped = await tocsin.of_executions("payments.mail", Skipped)
        assert [event.reason for event in skipped] == ["namespace_quota"] * 10

        async def is_shown() -> bool:
            shown = await ask(tocsin, "namespaces", "show", "payments")
            return (shown["executions_today"], shown["executions_per_day"]) == (30, 30)

        await tocsin.until(is_shown)  # a second later
        async with asyncio.timeout(DEADLINE):
            audited = await program(tocsin.settings, "audit")
        assert audited.returncode == 0, audited.stdout


@pytest.mark.full
async def test_results_use_up_the_day(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text("namespaces: [{name: payments, bytes_per_day: 100000}, billing]")
    worker = Worker(queues=["payments.q", "billing.q"])

    @worker.task("f")
    async def f(_: Context) -> str:
        return "x" * 60_000

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await ask(tocsin, "namespaces", "apply", "-f", str(file))
        for job in TEAMS:
            await tocsin.apply({"name": job, "function": "f", "queue": job.replace("mail", "q")})

        async def stored() -> int:
            size: int = (await ask(tocsin, "namespaces", "show", "payments"))["bytes_today"]
            return size

        async def has_stored(size: int) -> bool:
            return await stored() >= size

        for number in (1, 2):
            for job in TEAMS:
                await tocsin.trigger(job)
                await tocsin.ended(job, Completed, number)
            await tocsin.until(partial(has_stored, number * 60_000))
        for job in TEAMS:
            await tocsin.trigger(job)
        [skipped] = await tocsin.ended("payments.mail", Skipped)
        assert skipped.reason == "namespace_quota"
        await tocsin.ended("billing.mail", Completed, 3)
        assert len(await tocsin.of_executions("payments.mail", Completed)) == 2
        async with asyncio.timeout(DEADLINE):
            audited = await program(tocsin.settings, "audit")
        assert audited.returncode == 0, audited.stdout
