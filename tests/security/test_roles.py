"""Every stage and the worker as separate users with exactly their own permissions."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from tests.clocks import ShiftedClock
from tests.conformance.given import dispatched
from tests.domain.given import output_subject
from tests.durables import NatsDurable
from tests.security.installations import ACCOUNT, PASSWORD, connected, installed
from tests.security.server import Server, server
from tests.system.running import DEADLINE, Running, deciding
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.admin.accounts import password_variable
from tocsin.adapters.nats.client.wire import JetStreamError
from tocsin.archive.checkpoints import SIGNED_STREAMS
from tocsin.bootstrap import STAGE_NAMES
from tocsin.bootstrap.api_server import serving
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.events import (
    Acquired,
    Completed,
    CronTriggered,
    DeadLettered,
    ExecutionFact,
    HeartbeatDetails,
    Namespace,
    NotificationDelivered,
    OutputLine,
    OutputMessage,
    Paused,
    StepProgress,
)
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import LogUnavailable, NotAllowed, Publish
from tocsin.services.jobs import Registry
from tocsin.services.namespaces import Namespaces
from tocsin.settings import Settings
from tocsin.subjects import (
    JOB_EXECUTORS,
    Bucket,
    Stream,
    aside_key,
    changed_bytes_key,
    checkpoint_page,
    daily_use_key,
    heir_key,
)

ANY_PORT = {"server.port", "metrics.port"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("secured")) as running:
        yield running


async def _run_stage(at: Server, folder: Path, stage: str, ready: asyncio.Event) -> None:
    async with connected(at, folder, stage.replace("_", "-")) as installation:
        await bootstrap.await_log(installation)
        await bootstrap.run_stages(installation, [stage], ready=ready)


async def _run_worker(at: Server, folder: Path, worker: Worker) -> None:
    async with (
        connected(at, folder, "worker") as installation,
        bootstrap.worker_connection(installation, worker.options) as connection,
    ):
        await worker.serve(connection)


@asynccontextmanager
async def everybody(at: Server, folder: Path, *workers: Worker) -> AsyncIterator[Running]:
    """Each stage and worker on connections of their own; the test is an operator."""
    async with AsyncExitStack() as stack:
        tasks = []
        for stage in (name for name in STAGE_NAMES if at.is_screened or name != "screener"):
            ready = asyncio.Event()
            tasks.append(asyncio.create_task(_run_stage(at, folder, stage, ready), name=stage))
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait([waiting, tasks[-1]], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            assert not tasks[-1].done(), tasks[-1].exception()
        tasks += [asyncio.create_task(_run_worker(at, folder, worker)) for worker in workers]
        operator = await stack.enter_async_context(connected(at, folder, "operator"))
        try:
            yield Running(operator)
        finally:
            for worker in workers:
                worker.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_everything_works_with_no_more_than_is_granted(secured: Server, tmp_path: Path) -> None:
    worker, of_a_team = Worker(), Worker(queues=["teams", "pay.q"])

    @of_a_team.task("works")
    @worker.task("works")
    async def works(context: Context) -> None: ...

    @worker.task("lasts")
    async def lasts(_: Context) -> None:
        await asyncio.sleep(1.5)

    @worker.task("breaks")
    async def breaks(_: Context) -> None:
        raise ConnectionError("no route")

    before, retry = len(secured.log), {"max_attempts": 2, "initial_delay": 0.1}
    async with everybody(secured, tmp_path, worker, of_a_team) as tocsin:
        registry = Registry(tocsin.log, tocsin.installation.projections, tocsin.installation.clock)
        await Namespaces(tocsin.log).apply([Namespace(name="pay", executions_per_day=100, bytes_per_day=1_000_000)])
        await tocsin.apply(
            {"name": "timed", "function": "works", "schedule": "* * * * * *"},
            {
                "name": "broken",
                "function": "breaks",
                "retry": retry,
                "dead_letter": True,
                "notify": {"channels": ["ops"], "on_failure": True, "on_recovery": True},
            },
            {"name": "elsewhere", "function": "demo/echo", "queue": "outside"},
            {"name": "locked", "function": "works", "overlap_policy": "enqueue"},
            {"name": "queued", "function": "lasts", "schedule": "* * * * * *", "overlap_policy": "enqueue"},
            {"name": "assigned", "function": "works", "queue": "teams"},
            {"name": "pay.limited", "function": "works", "queue": "pay.q"},
        )
        await tocsin.ended("timed", Completed, 2)
        assert await tocsin.facts("cron.triggered.timed", CronTriggered)
        await registry.trigger("broken")
        await tocsin.until(lambda: tocsin.facts("dead-letter.broken.*.dead-lettered", DeadLettered))
        await tocsin.until(lambda: tocsin.facts("notification.broken.*.delivered", NotificationDelivered))
        await registry.trigger("locked")
        await registry.trigger("locked")
        await tocsin.ended("locked", Completed, 2)
        assert await tocsin.facts("lock.locked.*", Acquired)
        # The planner announces the first; each that waited is announced by the lock keeper.
        await tocsin.until(lambda: _counts(tocsin, "queued", 3))
        await registry.pause("queued")
        await registry.trigger("assigned")
        await tocsin.ended("assigned", Completed)
        await registry.trigger("pay.limited")
        await tocsin.ended("pay.limited", Completed)
        await registry.trigger("elsewhere")
        await _answer(secured, tmp_path)
        await tocsin.ended("elsewhere", Completed)
        if shutil.which("node"):
            async with _node(secured):
                await registry.trigger("elsewhere")
                await tocsin.ended("elsewhere", Completed, 2)
        await registry.pause("pay.limited")
        await registry.pause("timed")
        assert await tocsin.facts("ledger.timed.paused", Paused)

        [execution] = {fact.execution_id for fact in await tocsin.of_executions("broken", ExecutionFact)}

        async def is_recorded() -> bool:
            async with tocsin.installation.history() as history:
                return await history.execution(execution) is not None

        await tocsin.until(is_recorded)
        shown = tocsin.installation.projections
        await tocsin.until(lambda: shown.get(Bucket.DEFINITIONS, "locked"))
        for key in (daily_use_key("pay"), changed_bytes_key("pay")):
            await tocsin.until(partial(shown.get, Bucket.QUEUES, key))
        for stream in SIGNED_STREAMS:
            await tocsin.until(partial(shown.get, Bucket.CHECKPOINTS, checkpoint_page(stream, 1)))
    assert "Violation" not in secured.log[before:]


async def _counts(tocsin: Running, job: str, number: int) -> bool:
    """Return whether a number of runs of a job is announced, each in order from 1."""
    counts = [event.message.data.run_count for event in await tocsin.facts(f"cron.triggered.{job}", CronTriggered)]
    assert counts == [*range(1, len(counts) + 1)]
    return len(counts) >= number


async def _answer(at: Server, folder: Path) -> None:
    """Act as an executor outside, with plain NATS."""
    async with connected(at, folder, "mq-executor") as installation:
        connection = installation.connection
        durable = NatsDurable(connection, installation.names, Stream.MQ, JOB_EXECUTORS)
        [task] = await durable.take(1, wait=DEADLINE)
        data = json.loads(task.body)["data"]
        answer = json.dumps({"status": "completed"}).encode()
        await connection.request(f"mq.scheduler.complete.{data['job_name']}.{data['execution_id']}", answer)
        await task.ack()
        await durable.close()


@asynccontextmanager
async def _node(at: Server) -> AsyncIterator[None]:
    """Run the example of an executor in another language."""
    user = {"NATS_URL": at.url, "NATS_USER": "mq-executor", "NATS_PASSWORD": PASSWORD}
    environment = {**os.environ, **user, "NATS_INBOX_PREFIX": "_INBOX_mq-executor"}
    program = str(Path(__file__).parents[2] / "examples/mq_executor.mjs")
    node = await asyncio.create_subprocess_exec("node", program, env=environment, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        node.kill()
        await node.wait()


async def test_api_works_with_exactly_its_permissions(secured: Server, tmp_path: Path) -> None:
    before = len(secured.log)
    async with (
        connected(secured, tmp_path, "operator") as operators,
        connected(secured, tmp_path, "api") as installation,
        serving(installation, any_port=ANY_PORT) as url,
        httpx.AsyncClient(base_url=url, headers={"Idempotency-Key": "once"}) as client,
    ):
        await Namespaces(operators.log).apply([Namespace(name="pay", bytes_per_day=1_000_000)])
        await operators.projections.remove(Bucket.QUEUES, changed_bytes_key("pay"))
        job = {"name": "asked-for", "schedule": "0 3 * * *", "function": "works"}
        for method, path, body in (
            ("GET", "/v1/health", None),
            ("POST", "/v1/jobs", job),
            ("PUT", "/v1/jobs/pay.asked", {"queue": "pay.q", "function": "works"}),
            ("GET", "/v1/jobs", None),
            ("POST", "/v1/jobs/asked-for/pause", None),
            ("GET", "/v1/executions", None),
            ("GET", "/v1/queues", None),
            ("GET", "/v1/queues/outside", None),
        ):
            answer = await client.request(method, path, json=body)
            assert answer.status_code < 300, answer.text
        state = await client.get("/v1/status")
        assert state.json()["troubles"] == {}
        assert await installation.projections.get(Bucket.QUEUES, changed_bytes_key("pay"))
    assert "Violation" not in secured.log[before:]


async def test_api_over_nats_works_with_its_permissions(secured: Server, tmp_path: Path) -> None:
    before = len(secured.log)
    async with connected(secured, tmp_path, "api") as installation:
        served = replace(
            installation,
            settings=installation.settings.model_copy(
                update={"server": installation.settings.server.model_copy(update={"over_nats": True})}
            ),
        )
        async with serving(served, any_port=ANY_PORT):
            subject = installation.names.to_wire("api.getHealth")
            async with connected(secured, tmp_path, "viewer") as asking:
                answer = await asking.connection.client.request(subject, b"", timeout=DEADLINE)
            assert json.loads(answer.data)["status"] == "ok"
    assert "Violation" not in secured.log[before:]


async def test_all_stages_run_as_one_user(secured: Server, tmp_path: Path) -> None:
    before, ready = len(secured.log), asyncio.Event()
    worker = Worker()

    @worker.task("works")
    async def works(_: Context) -> None: ...

    async with (
        connected(secured, tmp_path, "scheduler") as installation,
        connected(secured, tmp_path, "operator") as it,
    ):
        stages = asyncio.create_task(bootstrap.run_stages(installation, STAGE_NAMES, ready=ready))
        working = asyncio.create_task(_run_worker(secured, tmp_path, worker))
        try:
            tocsin = Running(it)
            await tocsin.apply({"name": "together", "function": "works", "schedule": "* * * * * *"})
            await tocsin.ended("together", Completed)
            await Registry(it.log, it.projections, it.clock).pause("together")
        finally:
            worker.stop()
            stages.cancel()
            await asyncio.gather(stages, working, return_exceptions=True)
    assert "Violation" not in secured.log[before:]


EXECUTION = "execution.j.0198."
FACTS = {
    "planned": f"{EXECUTION}planned",
    "admitted": f"{EXECUTION}admitted",
    "dispatched": f"{EXECUTION}dispatched.main.1",
    "started": f"{EXECUTION}started.main.1.1",
    "completed": f"{EXECUTION}completed",
    "cancelled": f"{EXECUTION}cancelled",
    "retry-scheduled": f"{EXECUTION}retry-scheduled.main.1",
    "due": "ledger.j.due",
    "defined": "ledger.j.defined",
    "lock": "lock.j.acquired",
    "triggered": "cron.triggered.j",
    "report": "report.j.0198.completed.main.1.1",
    "trigger": "trigger.j",
    "change": "change.j.0198",
    "enqueued": "enqueue.j.0198",
    "released": f"{EXECUTION}released.main.1.7",
    "failed": f"{EXECUTION}failed",
    "dead-letter": "dead-letter.j.0198.dead-lettered",
    "replayed": "dead-letter.j.0198.replayed.1",
    "resolved": "dead-letter.j.0198.resolved",
    "registered": "agent.n.0198.registered",
    "ended": "agent.n.0198.ended",
    "switched": "agent.n.all.switched",
    "drain-started": "agent.n.0198.drain-started",
    "agents-granted": "agent.n.all.granted",
    "queue-paused": "queue.q.paused",
    "queue-resumed": "queue.q.resumed",
    "queue-purged": "queue.q.purged",
    "line": "output.j.0198.main.1.x",
    "progress": "progress.j.0198.main.1.x",
    "heartbeat": "heartbeat.j.0198.main.1.x",
    "raised": "notification.j.0198.raised",
    "delivered": "notification.j.0198.delivered",
    "taken": "unique.j.0198.taken",
    "ignored": "event.j.0198",
}
GRANTED = {
    "registrar": {"commit"},
    "ticker": {"commit"},
    "planner": {"commit", "ignored", "triggered"},
    "event-listener": {"trigger", "ignored"},
    "lock-keeper": {"commit"},
    "dag-advancer": {"commit"},
    "lease-keeper": {"commit", "report"},
    "retrier": {"commit"},
    "dead-letter-sink": {"commit"},
    "recorder": set[str](),
    "recoverer": {"commit", "report"},
    "agent-keeper": {"commit"},
    "matcher": {"commit", "report"},
    "notary": set[str](),
    "notifier": {"commit", "raised", "delivered"},
    "scheduler": {
        *("commit", "triggered", "ignored", "trigger", "report", "progress", "raised", "delivered"),
    },
    "worker": {"report", "line", "progress", "heartbeat"},
    "worker-mail": {"report", "line", "progress", "heartbeat"},
    "worker-billing": {"report", "line", "progress", "heartbeat"},
    "operator": {"change", "trigger", "report"},
    "api": {"change", "trigger", "enqueued", "report", "progress", "heartbeat"},
    "viewer": set[str](),
    "mq-bridge": {"commit", "report", "progress"},
    "mq-executor": set[str](),
    "admin": set[str](),
    "backup": set[str](),
    "restore": {"commit"},
    "public": set[str](),
    "public-shop": set[str](),
    "public-billing": set[str](),
}
"""The messages that each role may store, listed again by hand, so that a rule that is too wide shows.

A decision is stored in a commit alone, so no role may store it on its own subject."""


@pytest.mark.parametrize("role", GRANTED)
async def test_a_role_may_store_its_own_facts_only(role: str, secured: Server, tmp_path: Path) -> None:
    stored = set()
    async with connected(secured, tmp_path, role) as installation:
        names, connection = installation.names, installation.connection
        wired = {fact: names.to_wire(subject) for fact, subject in FACTS.items()}
        for fact, subject in (wired | {"commit": f"{names.commits_prefix}.0"}).items():
            headers = {"Nats-Expected-Last-Subject-Sequence": "987654321"}  # a permitted role conflicts; nothing is
            headers = {"Nats-Expected-Last-Subject-Sequence": "987654321"}  # stored
            with pytest.raises(Exception) as refused:  # noqa: PT011 - the test is about which role
                await connection.store(subject, b"{}", headers)
            if not isinstance(refused.value, NotAllowed):
                stored.add(fact)
    assert stored == GRANTED[role]


FORBIDDEN = [
    ("worker", "$JS.API.STREAM.PURGE.TOCSIN_LOG"),
    ("worker", "$JS.API.STREAM.DELETE.TOCSIN_LOG"),
    ("worker", "$JS.API.STREAM.PURGE.TOCSIN_REPORTS"),
    ("worker", "$JS.API.CONSUMER.CREATE.TOCSIN_REPORTS.mine"),
    ("worker", "$JS.API.STREAM.UPDATE.TOCSIN_LOG"),
    *(
        ("worker", f"$JS.API.{verb}")
        for verb in (
            *("DIRECT.GET.TOCSIN_OUTPUT", "STREAM.MSG.GET.TOCSIN_OUTPUT", "CONSUMER.CREATE.TOCSIN_OUTPUT.mine"),
            *("DIRECT.GET.TOCSIN_PROGRESS", "STREAM.MSG.GET.TOCSIN_PROGRESS", "STREAM.PURGE.TOCSIN_OUTPUT"),
            *("DIRECT.GET.TOCSIN_OUTPUT.tocsin.0.output.j.0198.line", "CONSUMER.CREATE.TOCSIN_PROGRESS.mine"),
            "DIRECT.GET.TOCSIN_PROGRESS.tocsin.0.progress.j.0198.main",
        )
    ),
    ("worker", "$JS.API.STREAM.MSG.DELETE.TOCSIN_LOG"),
    ("worker", "$JS.API.CONSUMER.MSG.NEXT.TOCSIN_REPORTS.retrier"),
    ("worker", "$JS.API.CONSUMER.DELETE.TOCSIN_LOG.dag-advancer"),
    ("worker", "$JS.ACK.TOCSIN_REPORTS.retrier.1.1.1.1.1"),
    ("worker", "$JS.API.DIRECT.GET.TOCSIN_LEDGER"),
    ("worker", "$JS.API.DIRECT.GET.KV_tocsin_installation.$KV.tocsin_installation.report-key"),
    ("worker", "$KV.tocsin_leader.ticker"),
    ("retrier", "$JS.API.DIRECT.GET.TOCSIN_LEDGER"),
    ("retrier", "$JS.API.DIRECT.GET.TOCSIN_LEDGER.tocsin.0.ledger.j.defined"),
    ("worker", "$JS.API.DIRECT.GET.TOCSIN_LEDGER.tocsin.0.repair.LOG.1.voided"),
    ("planner", "$JS.API.CONSUMER.MSG.NEXT.TOCSIN_LOG.dag-advancer"),
    ("planner", "$JS.API.CONSUMER.CREATE.TOCSIN_LOG.mine"),
    ("planner", "$KV.tocsin_definitions.j"),
    ("ticker", "$JS.API.CONSUMER.MSG.NEXT.TOCSIN_LEDGER.planner"),
    ("ticker", "$KV.tocsin_leader.another"),
    ("ticker", "$KV.tocsin_leader.recoverer.aside.it"),
    ("worker", "$KV.tocsin_leader.ticker.heir"),
    ("recorder", "$JS.API.CONSUMER.DELETE.TOCSIN_REPORTS.retrier"),
    ("recorder", "$KV.tocsin_queues.use.payments"),
    ("planner", "$KV.tocsin_locks.scheduler.lock.j"),
    ("admin", "$JS.API.STREAM.DELETE.TOCSIN_LOG"),
    ("viewer", "$JS.API.CONSUMER.MSG.NEXT.TOCSIN_MQ.mq-bridge-completions"),
    ("operator", "$JS.API.STREAM.PURGE.TOCSIN_LEDGER"),
    ("viewer", "$JS.API.DIRECT.GET.KV_tocsin_tokens"),
    ("viewer", "$JS.API.STREAM.SNAPSHOT.TOCSIN_LOG"),
    ("operator", "$JS.API.STREAM.SNAPSHOT.KV_tocsin_tokens"),
    ("admin", "$JS.API.STREAM.RESTORE.TOCSIN_LOG"),
    ("backup", "$JS.API.STREAM.RESTORE.TOCSIN_LOG"),
    ("backup", "$JS.API.STREAM.CREATE.TOCSIN_LOG"),
    ("backup", "$JS.API.STREAM.PURGE.TOCSIN_LOG"),
    ("backup", "$JS.API.CONSUMER.CREATE.TOCSIN_LOG.mine"),
    ("restore", "$JS.API.STREAM.DELETE.TOCSIN_LOG"),
    ("restore", "$JS.API.STREAM.PURGE.TOCSIN_LOG"),
    ("restore", "$JS.API.STREAM.PURGE.TOCSIN_LEDGER"),
    ("backup", "$JS.API.STREAM.PURGE.TOCSIN_REPORTS"),
    ("restore", "$KV.tocsin_installation.another"),
    ("worker", "$JS.API.DIRECT.GET.KV_tocsin_tokens"),
    *(
        (role, "$KV.tocsin_checkpoints.LOG.00000001")
        for role in ("recorder", "archiver", "api", "operator", "viewer", "worker", "admin", "public")
    ),
    ("notary", "$JS.API.STREAM.PURGE.TOCSIN_LOG"),
    ("notary", "$JS.API.STREAM.PURGE.KV_tocsin_checkpoints"),
    ("public", "$JS.API.STREAM.INFO.TOCSIN_LOG"),
    ("public", "tocsin.0.trigger.j"),
    ("public-shop", "tocsin.outside.billing.trigger.j"),
    ("public-shop", "tocsin.outside.shop.trigger.j"),
]


@pytest.mark.parametrize(("role", "subject"), FORBIDDEN)
async def test_requests_to_jetstream_are_narrowed_too(role: str, subject: str, secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, role) as installation:
        with pytest.raises(NotAllowed) as refused:
            await installation.connection.request(subject)
        assert refused.value.subject == subject


@pytest.mark.parametrize("stage", ["ticker", "recoverer", "archiver", "agent-keeper", "matcher", "notary"])
async def test_candidate_may_stand_aside(stage: str, secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, stage) as installation:
        guard = ClockGuard(installation.log, ShiftedClock(installation.clock, 120.0))
        wrong = LeaderElection(installation.projections, guard, key=stage, holder="wrong", ttl=60)
        await wrong.run_once()
        right = LeaderElection(
            installation.projections,
            ClockGuard(installation.log, installation.clock),
            key=stage,
            holder="right",
            ttl=60,
        )
        await right.run_once()
        assert (wrong.is_leading, right.is_leading) == (False, True)
        aside, shown = aside_key(stage, "wrong"), installation.projections
        assert await shown.get(Bucket.LEADER, aside) is not None
        await wrong._withdraw_report()
        assert await shown.get(Bucket.LEADER, aside) is None
        await shown.put(Bucket.LEADER, heir_key(stage), b"right", ttl=1)
        await right.release()


async def test_worker_says_and_viewer_reads(secured: Server, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    place: dict[str, Any] = {"job": "said", "execution_id": "0198", "step": "main", "attempt": 1, "time": now}
    said: list[OutputMessage] = [
        OutputLine(**place, text="x"),
        StepProgress(**place, fraction=0.5),
        HeartbeatDetails(**place, details=7),
    ]
    heartbeat = output_subject(said[2])
    async with connected(secured, tmp_path, "worker") as installation:
        written = await installation.log.write([Publish(output_subject(m), m, f"{n}") for n, m in enumerate(said)])
        assert [result.error for result in written] == [None] * 3
        with pytest.raises(NotAllowed):
            await installation.log.last(heartbeat)
    for role in ("viewer", "operator", "api"):
        async with connected(secured, tmp_path, role) as installation:
            last = await installation.log.last(heartbeat)
            assert last is not None
            assert last.message == said[2]
            [line] = await installation.log.read(output_subject(said[0]))
            [[progress]] = (await installation.log.load_each(output_subject(said[1]))).facts
            assert [line.message, progress.message] == said[:2]


async def test_answers_to_another_user_are_hidden(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "worker") as installation:
        client, heard = installation.connection.client, asyncio.Event()
        refused: list[str] = []

        async def note(error: Exception) -> None:
            refused.append(str(error))
            heard.set()

        client._error_cb = note
        await client.subscribe("_INBOX_planner.>")
        async with asyncio.timeout(DEADLINE):
            await heard.wait()
        assert "permissions violation for subscription" in refused[0]


async def test_public_user_triggers_and_subscribes(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "public") as installation:
        client = installation.connection.client
        answer = await client.request("cron.trigger.nothing-is-called-so", b"{}")
        assert b"TOCSIN_INPUTS" in answer.data
        with pytest.raises((NoRespondersError, NatsTimeoutError)):
            await client.request("cron.triggered.x", b"", timeout=0.2)


HOSTILE_HEADERS = pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tocsin.0.ledger.evil.defined"},
        {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tocsin.0.execution.j.0198.completed"},
    ],
    ids=["rollup of all", "rollup of a subject", "lifetime", "schedule", "schedule of an end"],
)


@HOSTILE_HEADERS
async def test_worker_changes_nothing_in_the_log(headers: dict[str, str], secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "scheduler") as scheduler, deciding(scheduler) as it:
        await it.log.append(dispatched(str(uuid4())), expect=0)
        before = await it.log.read("execution.>")
        async with connected(secured, tmp_path, "worker") as installation:
            wire = installation.names.to_wire("execution.j.0198.started.main.1.1")
            with pytest.raises((JetStreamError, LogUnavailable)):
                await installation.connection.store(wire, b"{}", headers)
        assert before
        assert await it.log.read("execution.>") == before


@HOSTILE_HEADERS
async def test_public_user_changes_nothing_in_the_ledger(
    headers: dict[str, str], secured: Server, tmp_path: Path
) -> None:
    async with connected(secured, tmp_path, "operator") as it:
        await Running(it).apply({"name": "kept", "function": "f"})
        before = await it.log.read("ledger.>")
        async with connected(secured, tmp_path, "public") as installation:
            with pytest.raises((JetStreamError, LogUnavailable)):
                await installation.connection.store("cron.trigger.kept", b"{}", headers)
        assert before
        assert await it.log.read("ledger.>") == before


def test_the_command_prints_what_the_server_takes(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tocsin", "permissions"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    roles = permissions(Settings(data_dir=tmp_path))
    environment = {password_variable(ACCOUNT, role): PASSWORD for role in roles}
    with server(tmp_path / "s", result.stdout, environment=environment):
        pass
