"""Operators pause, resume and purge a matched queue: a real nats-server, all stages, the command line."""

import json
from pathlib import Path
from typing import Any

from tests.services.health.test_status import program
from tests.system.running import Running, registrar, running
from tocsin import Context, Worker
from tocsin.domain.events import Admitted, Cancelled, Completed, QueueFact, Started

MATCHED = {"default": {"transport": "matched"}, "mail": {"transport": "matched"}}
PURGED = 20


async def queues(tocsin: Running, *args: str) -> dict[str, Any]:
    result = await program(tocsin.settings, "queues", *args, "-o", "json")
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


async def test_queue_exists_before_its_job_is_displayed(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path, stages=("planner",)) as tocsin:  # no registrar displays the job
        await tocsin.apply({"name": "mails", "function": "load", "queue": "mail"})
        async with registrar(tocsin.installation):
            assert (await queues(tocsin, "pause", "mail", "--reason", "deploy"))["changed"] is True


async def test_operator_pauses_purges_and_resumes(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["default", "mail"], name="team-1")

    @worker.task("load")
    async def load(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker) as tocsin:  # only the job names the queue `mail`
        await tocsin.apply({"name": "mails", "function": "load", "queue": "mail", "overlap_policy": "allow"})
        await tocsin.apply({"name": "plain", "function": "load"})
        assert (await queues(tocsin, "pause", "mail", "--reason", "deploy"))["changed"] is True
        for _ in range(PURGED):
            await tocsin.trigger("mails")
        await tocsin.trigger("plain")
        await tocsin.ended("plain", Completed)

        async def all_wait() -> dict[str, Any]:
            details = await queues(tocsin, "show", "mail")
            return details if details["waiting"] == PURGED else {}

        details = await tocsin.until(all_wait)
        assert details["paused"]["reason"] == "deploy"
        assert await tocsin.of_executions("mails", Started) == []
        [execution, *_] = {r.execution_id for r in await tocsin.of_executions("mails", Admitted)}
        page = (await program(tocsin.settings, "executions", "show", execution)).stdout
        assert "waits for a worker: queue mail is paused by" in page
        assert "because: deploy" in page
        report = json.loads((await program(tocsin.settings, "doctor", "-o", "json")).stdout)
        [finding] = [found for found in report if found["code"] == "queue-paused"]
        assert f"and {PURGED} tasks wait" in finding["what"]

        preview = await queues(tocsin, "purge", "mail", "--dry-run")
        assert (preview["waiting"], preview["changed"]) == (PURGED, False)
        assert (await queues(tocsin, "purge", "mail", "--yes", "--reason", "wrong list"))["changed"] is True
        ends = await tocsin.ended("mails", Cancelled, PURGED)
        assert {end.reason for end in ends} == {"queue mail purged: wrong list"}

        await tocsin.trigger("mails")
        await queues(tocsin, "resume", "mail")
        await tocsin.ended("mails", Completed)
        assert len(await tocsin.facts("queue.mail.*", QueueFact)) == 3
        trail = (await program(tocsin.settings, "events", "audit-trail")).stdout
        assert all(word in trail for word in ("paused", "purged", "resumed"))
        audited = await program(tocsin.settings, "audit")
        assert audited.returncode == 0, audited.stdout


async def test_worker_without_a_grant_gets_nothing(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["mail"], name="team-1")

    @worker.task("mail/send")
    async def send(_: Context) -> None: ...

    async def agents(*args: str) -> str:
        result = await program(tocsin.settings, "agents", *args)
        assert result.returncode == 0, result.stderr
        return result.stdout

    async def is_refused() -> bool:
        return "`agents.require_grant` is set" in (await program(tocsin.settings, "agents", "show", "team-1")).stdout

    required = {"require_grant": True}
    async with running(nats_url, tmp_path, worker=worker, queues=MATCHED, agents=required) as tocsin:
        await tocsin.apply({"name": "mails", "function": "mail/send", "queue": "mail"})
        await tocsin.trigger("mails")
        await tocsin.until(is_refused)
        findings = (await program(tocsin.settings, "doctor")).stdout
        assert "tocsin agents allow team-1 --queue mail" in " ".join(findings.split())
        await agents("allow", "team-1", "--queue", "default")
        assert await tocsin.of_executions("mails", Started) == []
        await agents("allow", "team-1", "--queue", "mail", "--function", "mail/*")
        await tocsin.ended("mails", Completed)
        assert "mail (mail/*)" in await agents("revoke", "team-1", "--queue", "default")
