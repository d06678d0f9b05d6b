"""Programs outside, in accounts of their own: what they ask for reaches the streams, and nothing else does.

A request names the subject of its reply, and within one account a stream that captures this subject stores the reply.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nats
import pytest

from tests.security import installations
from tests.security.installations import PASSWORD, connected, installed, user
from tests.security.server import Server
from tests.system.running import DEADLINE, Running, registrar
from tocsin import bootstrap
from tocsin.adapters.nats.admin.permissions import Permissions
from tocsin.bootstrap import STAGE_NAMES, Installation
from tocsin.bootstrap.api_server import serving
from tocsin.bootstrap.nats_roles import permissions
from tocsin.services.jobs import Registry
from tocsin.services.queues import queues
from tocsin.settings import Settings
from tocsin.subjects import STREAM_SUBJECTS, Bucket, matches

WORKERS = [
    "tocsin.0.report.victim.0198.completed.main.1.1",
    "tocsin.0.output.victim.0198.main.1.seal",
    "tocsin.0.progress.victim.0198.main.1.seal",
    "tocsin.0.heartbeat.victim.0198.main.1.seal",
]
"""The subjects under which workers may store messages."""
ASKED = {
    "public": ["cron.trigger.victim", "cron.cancel.victim.0198"],
    "public-shop": ["cron.trigger.victim", "cron.cancel.victim.0198", "sensor.a.read"],
    "mq-executor": [
        "mq.scheduler.complete.victim.0198",
        "$JS.API.CONSUMER.MSG.NEXT.TOCSIN_MQ.job-executors",
        "$JS.API.CONSUMER.INFO.TOCSIN_MQ.job-executors",
        "$JS.ACK.TOCSIN_MQ.job-executors.1.1.1.1.0",
    ],
    "worker": [*WORKERS, "tocsin.agent.a.0198.hold"],
    "worker-mail": [*WORKERS, "tocsin.agent.mail.0198.hold"],
    "api-client": ["tocsin.api.getHealth", "tocsin.api.listJobs"],
}
"""What each role outside may ask, with a job that exists."""
REPLIES = [
    "tocsin.0.ledger.victim.due",
    "tocsin.0.ledger.victim.defined",
    "tocsin.0.trigger.victim",
    "tocsin.0.cancel.victim.0198",
    "tocsin.0.enqueue.victim.0198",
    "tocsin.0.policy.defined",
    "tocsin.0.agent.a.0198.registered",
    "tocsin.0.execution.victim.0198.admitted",
    "tocsin.0.execution.victim.0198.completed",
    "tocsin.0.lock.victim.acquired",
    "tocsin.0.dead-letter.victim.0198.replayed.1",
    "tocsin.0.cron.triggered.victim",
    "tocsin.0.report.victim.0198.completed.main.1.1",
    "tocsin.0.timer.victim.0198.retry.main.1",
    "tocsin.0.delay.victim.0198.retry.main.1",
    "tocsin.0.output.victim.0198.main.1.seal",
    "tocsin.0.heartbeat.victim.0198.main.1.seal",
    "tocsin.outside.billing.trigger.victim",
    "tocsin.outside.billing.cancel.victim.0198",
    "tocsin.agent.a.0198.hold",
    "tocsin.task.a.0198",
    "tocsin.task.mail.0198.run",
    "tocsin.task.mail.0198.end",
    "tocsin.agents",
    "tocsin.fetch.answer.0198",
    "mq.scheduled.victim",
    "mq.scheduler.cancel.victim.0198",
    "cron.triggered.victim",
    "$KV.tocsin_definitions.victim",
    "$KV.tocsin_leader.ticker",
    "$KV.tocsin_tokens.one",
    "$KV.tocsin_cursors.planner",
    "$O.tocsin_archive.M.one",
    "tocsin.commits.0",
    "tocsin.turns",
    "$JS.API.STREAM.PURGE.tocsin_COMMITS",
    "$JS.API.CONSUMER.DELETE.TOCSIN_REQUESTS.planner",
]
"""Subjects on which a reply would change something."""
INTERNAL = [
    *(
        f"{'' if captured.startswith('mq.') else 'tocsin.0.'}{captured.replace('*', 'billing').removesuffix('>')}victim.0198"
        for stored in STREAM_SUBJECTS.values()
        for captured in stored
    ),
    *(f"$KV.tocsin_{bucket}.victim" for bucket in Bucket),
]
"""A subject for each that a stream stores, and a key of each bucket."""
HEADERS = [
    {},
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tocsin.commits.0"},
    {"Nats-Expected-Last-Subject-Sequence": "0"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Incr": "1"},
    {"Nats-Msg-Id": "one"},
    {"Nats-Expected-Last-Sequence": "0"},
    {"Nats-Expected-Last-Msg-Id": "one"},
    {"Nats-Expected-Stream": "tocsin_COMMITS"},
    {"Nats-Scheduler": "tocsin.0.ledger.victim.due", "Nats-Schedule-Next": "purge"},
    {"Nats-Subject": "tocsin.0.ledger.victim.due", "Nats-Stream": "tocsin_COMMITS", "Nats-Sequence": "1"},
    {"Nats-Request-Info": '{"acc":"TOCSIN"}'},
    {"Nats-Trace-Dest": "tocsin.0.ledger.victim.due"},
]


INPUTS = {
    *("cron.trigger.victim", "cron.cancel.victim.0198", "mq.scheduler.complete.victim.0198"),
    *("tocsin.outside.public.trigger.victim", "tocsin.outside.public.cancel.victim.0198"),
    *("tocsin.outside.shop.trigger.victim", "tocsin.outside.shop.cancel.victim.0198"),
}
"""The subjects under which outsiders may store messages."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("outside")) as running:
        yield running


@asynccontextmanager
async def victim(at: Server, folder: Path, *jobs: Mapping[str, str]) -> AsyncIterator[Running]:
    """Serve the API over NATS, and define a job as an operator."""
    async with user(at, folder, "api") as installation, user(at, folder, "operator") as it:
        server = installation.settings.server.model_copy(update={"over_nats": True})
        served = replace(installation, settings=installation.settings.model_copy(update={"server": server}))
        async with serving(served, any_port={"server.port", "metrics.port"}):
            tocsin = Running(it)
            async with user(at, folder, "registrar") as stage, registrar(stage):
                await tocsin.apply({"name": "victim", "function": "f"}, *jobs)
            yield tocsin


async def everything(it: Installation, role: str = "") -> dict[str, dict[str, int]]:
    """Return the number of messages by stream and subject, without what a role outside may store."""
    allowed = INPUTS.union(WORKERS) if role.startswith("worker") else INPUTS
    found = dict[str, dict[str, int]]()
    for stream in (*it.names.own_streams(), *(f"KV_tocsin_{name}" for name in Bucket)):
        reply = await it.connection.client.request(
            f"$JS.API.STREAM.INFO.{stream}", b'{"subjects_filter":">"}', timeout=DEADLINE
        )
        subjects = json.loads(reply.data)["state"].get("subjects") or {}
        found[stream] = {subject: number for subject, number in subjects.items() if subject not in allowed}
    return found


async def attack(at: Server, folder: Path, role: str, headers: dict[str, str]) -> None:
    """Publish on all that the role may ask, with every reply subject."""
    async with connected(at, folder, role) as outside:
        client = outside.connection.client
        for subject in ASKED[role]:
            for reply in (*REPLIES, *INTERNAL):
                await client.publish(subject, b'{"no_wait":true}', reply=reply, headers=headers)
        await client.flush()
        await client.request(ASKED[role][0], b"{}", timeout=DEADLINE)  # all earlier requests were handled
    await asyncio.sleep(0.2)  # unless its handler waits for something


TWINS = {"public-billing": "public-shop", "worker-billing": "worker-mail"}
"""Roles that differ from another only in the name of their account."""


def test_every_subject_of_each_role_is_attacked(tmp_path: Path) -> None:
    """An attack on a subject that the role may not use proves nothing."""
    outside = {role: rule for role, rule in installations.rules(tmp_path).items() if rule.outside is not None}
    assert outside.keys() == ASKED.keys() | TWINS.keys()
    for role, subjects in ASKED.items():
        allowed = outside[role].publish
        assert [it for it in subjects if not any(matches(each, it) for each in allowed)] == [], role
        assert [it for it in allowed if not any(matches(it, each) for each in subjects)] == [], role


@pytest.mark.parametrize("role", ASKED)
async def test_no_reply_is_stored(role: str, secured: Server, tmp_path: Path) -> None:
    async with victim(secured, tmp_path) as tocsin:
        before = await everything(tocsin.installation, role)
        for headers in HEADERS:
            await attack(secured, tmp_path, role, headers)
            assert await everything(tocsin.installation, role) == before, headers


@pytest.mark.parametrize("role", [role for role in ASKED if role != "api-client"])
async def test_no_header_removes_messages_of_others(role: str, secured: Server, tmp_path: Path) -> None:
    """In each stream in which a role may store messages, other users outside stored some before."""
    others = {
        "public-billing": ["cron.trigger.other", "cron.cancel.other.0198"],
        "worker-billing": [subject.replace("victim", "other") for subject in WORKERS],
        "mq-executor": ["mq.scheduler.complete.other.0198"],
    }

    async def of_others(it: Installation) -> dict[str, int]:
        stored = (await everything(it)).values()
        return {subject: number for each in stored for subject, number in each.items() if ".other" in subject}

    async with connected(secured, tmp_path, "operator") as it:
        for other, subjects in others.items():
            async with connected(secured, tmp_path, other) as outside:
                for subject in subjects:
                    reply = await outside.connection.client.request(subject, b"{}", timeout=DEADLINE)
                    assert json.loads(reply.data)["seq"]
        before = await of_others(it)
        assert len(before) >= sum(map(len, others.values()))
        async with connected(secured, tmp_path, role) as outside:
            client = outside.connection.client
            for subject in ASKED[role]:
                for headers in HEADERS:
                    await client.publish(subject, b"{}", headers=headers)
            await client.request(ASKED[role][0], b"{}", timeout=DEADLINE)  # all earlier messages were handled
        assert await of_others(it) == before


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a server where only permissions separate the users."""

    def in_one_account(settings: Settings) -> dict[str, Permissions]:
        return {name: replace(rules, outside=None) for name, rules in permissions(settings).items()}

    monkeypatch.setattr(installations, "permissions", in_one_account)
    with installed(tmp_path / "server") as running:
        yield running


@pytest.mark.parametrize("role", ASKED)
async def test_the_attack_works_within_one_account(role: str, together: Server, tmp_path: Path) -> None:
    async with victim(together, tmp_path) as tocsin:
        before = await everything(tocsin.installation)
        await attack(together, tmp_path, role, {})
        assert await everything(tocsin.installation) != before


async def test_audit_reports_what_a_reply_stored(together: Server, tmp_path: Path) -> None:
    async with victim(together, tmp_path) as tocsin:
        assert await audited(together, tmp_path) == (0, [])
        await attack(together, tmp_path, "public", {})
        state = await tocsin.installation.connection.manage(f"STREAM.INFO.{tocsin.installation.names.commits_stream}")
        code, remarks = await audited(together, tmp_path)
        assert code == 0  # they count for no reader
        assert any("messages of the log are no commits of this installation" in remark for remark in remarks), (
            "\n".join(remarks)
        )
        assert state["state"]["messages"] > 2


async def audited(at: Server, folder: Path) -> tuple[int | None, list[str]]:
    """Return the exit code of `tocsin audit`, and its remarks."""
    settings = {"TOCSIN_NATS__USER": "viewer", "TOCSIN_NATS__PASSWORD": PASSWORD}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tocsin", "--nats", at.url, "audit", "-o", "json"),
        env={**os.environ, **settings, "TOCSIN_NATS__INBOX_PREFIX": "_INBOX_viewer"},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await program.communicate()
    return program.returncode, json.loads(output)["remarks"]


async def test_plain_client_triggers_and_hears(secured: Server, tmp_path: Path) -> None:
    told = {"name": "told", "function": "f", "schedule": "* * * * * *", "overlap_policy": "skip"}
    async with victim(secured, tmp_path, told), connected(secured, tmp_path, "scheduler") as scheduler:
        client = await nats.connect(secured.url, user="public", password=PASSWORD, inbox_prefix="_INBOX_public")
        heard = {event: await client.subscribe(f"cron.{event}.told") for event in ("triggered", "skipped")}
        answers = await client.subscribe("cron.answer.told.*")
        await client.flush()
        stages = asyncio.create_task(bootstrap.run_stages(scheduler, STAGE_NAMES))
        try:
            event = await heard["triggered"].next_msg(timeout=DEADLINE)
            assert event.subject == "cron.triggered.told"
            assert (event.headers or {})["ce-type"] == "org.openjobspec.cron.triggered"
            event = await heard["skipped"].next_msg(timeout=DEADLINE)
            assert event.subject == "cron.skipped.told"
            stored = await client.request("cron.trigger.told", b"{}")
            assert json.loads(stored.data)["stream"] == "TOCSIN_INPUTS"
            answer = await answers.next_msg(timeout=DEADLINE)
            assert json.loads(answer.data)["data"]["cron_name"] == "told"
        finally:
            await client.close()
            stages.cancel()
            await asyncio.gather(stages, return_exceptions=True)


async def test_outsiders_do_not_hear_requests_of_others(secured: Server) -> None:
    refused = asyncio.Queue[str]()

    async def note(error: Exception) -> None:
        await refused.put(str(error))

    client = await nats.connect(
        secured.url, user="public", password=PASSWORD, inbox_prefix="_INBOX_public", error_cb=note
    )
    for subject in ("cron.>", "cron.trigger.>", "cron.*.victim", ">"):
        await client.subscribe(subject)
        async with asyncio.timeout(DEADLINE):
            assert "permissions violation for subscription" in (await refused.get()).lower()
    await client.close()


async def test_viewer_lists_the_queues(secured: Server, tmp_path: Path) -> None:
    async with victim(secured, tmp_path), connected(secured, tmp_path, "viewer") as viewer:
        jobs = Registry(viewer.log, viewer.projections, viewer.clock).jobs
        found = {queue.name: queue.transport for queue in await queues(bootstrap.health_target(viewer), jobs)}
        assert found == {"default": "matched", "outside": "mq", "teams": "matched"}


async def test_api_answers_a_client_outside(secured: Server, tmp_path: Path) -> None:
    async with victim(secured, tmp_path), connected(secured, tmp_path, "api-client") as outside:
        answer = await outside.connection.client.request("tocsin.api.getHealth", b"", timeout=DEADLINE)
        assert json.loads(answer.data)["status"] == "ok"
