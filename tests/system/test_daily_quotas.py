"""A daily quota on a real nats-server: two teams, a restart of the stages, and an audit."""

import asyncio
from itertools import count
from pathlib import Path

from tests.services.health.test_status import program
from tests.system.running import DEADLINE, running
from tests.system.test_policy import ask
from tocsin.domain.events import Admitted, Skipped

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
        shown = await ask(tocsin, "namespaces", "show", "payments")
        assert (shown["executions_today"], shown["executions_per_day"]) == (30, 30)
        async with asyncio.timeout(DEADLINE):
            audited = await program(tocsin.settings, "audit")
        assert audited.returncode == 0, audited.stdout
