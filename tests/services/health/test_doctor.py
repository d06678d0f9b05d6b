"""Each finding of `tocsin doctor`, provoked on a real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.domain.given import ID, KEY, plan, recorded
from tests.durables import NatsDurable
from tests.security.server import Server
from tests.security.server import server as nats_server
from tests.system.running import Running, deciding, running, settings
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.adapters.nats.admin.inspection import NatsInspection
from tocsin.adapters.nats.admin.provision import Mode
from tocsin.adapters.nats.admin.provision_errors import MessagesAtRisk, StreamUnchangeable
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.adapters.nats.server.cluster import EmbeddedCluster
from tocsin.bootstrap import Installation, health_target, provision
from tocsin.bootstrap.operators import unheard_streams_of
from tocsin.cli.installation.status import shown
from tocsin.domain import execution, ids
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.commit import CommitEvent
from tocsin.domain.definition import EventTrigger, JobDependency
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Death,
    Dispatched,
    Due,
    EventIgnored,
    EventReference,
    Failure,
    Message,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationFact,
    NotificationRaised,
    OwnershipAssigned,
    Planned,
    Queued,
    Released,
    RetryScheduled,
    Shard,
    ShardState,
    Started,
    validated,
)
from tocsin.domain.job_record import Registration
from tocsin.domain.notification import Kind
from tocsin.domain.queue_backlog import QueueBacklog
from tocsin.engine.fold import Fold
from tocsin.engine.foreign_reports import ForeignReports
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.stage_leases import follower_of
from tocsin.ports import EventDurable, LogUnavailable, RequestRefused
from tocsin.ports.server_inspection import ServerState, StreamState
from tocsin.services.health import Finding, Level, doctor, examine, worst
from tocsin.services.health.checks import (
    backlog,
    deadlines,
    definitions,
    processes,
    streams,
    trigger_sources,
)
from tocsin.services.health.checks import server as server_checks
from tocsin.services.health.doctor import Check, look_at
from tocsin.services.health.status import Queue, problems_of
from tocsin.services.shards import ShardMaps
from tocsin.settings.model import Screener
from tocsin.subjects import (
    INSTALLATION_KEY,
    MATCHER_LEASE,
    NOTARY_LEASE,
    TICKER_LEASE,
    Bucket,
    Stream,
    aside_key,
    heir_key,
)
from tocsin.testing import ManualClock

LATER = timedelta(hours=1)
"""How far ahead a test looks from, where something must be old."""

QUIET: Final = Queue("quiet", 3, 1, 1)


@asynccontextmanager
async def initialized(url: str, folder: Path, **more: object) -> AsyncIterator[Running]:
    """An installation in which nothing runs."""
    async with bootstrap.connect(settings(url, folder, **more)) as installation:
        await bootstrap.initialize(installation)
        async with deciding(installation) as it:
            yield Running(it)


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    async with initialized(nats_url, tmp_path) as it:
        yield it


@pytest.fixture
async def bridged(nats_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    """An installation whose stage for MQ executors has a durable."""
    async with initialized(nats_url, tmp_path, queues={"default": {"transport": "mq"}}) as it:
        yield it


async def finds(
    check: Check, tocsin: Running, *, later: timedelta = timedelta(), server: ServerState | None = None
) -> dict[str, Finding]:
    """Return the findings of one check at a later time."""
    look = await look_at(health_target(tocsin.installation))
    look = replace(look, now=look.now + later, status=replace(look.status, server=server or look.status.server))
    return {finding.code: finding for finding in doctor.listed(await check(look))}


def assert_finding(finding: Finding, level: Level, *texts: str) -> None:
    assert finding.level is level
    assert finding.means
    assert finding.do
    for text in texts:
        assert text in finding.what


async def store(tocsin: Running, *facts: Message) -> int:
    """Facts of one scope in a row; the last sequence."""
    log, sequence = tocsin.log, 0
    for fact in facts:
        sequence = await log.append(fact, expect=await log.tail(subjects.scope_of(fact)))
    return sequence


async def test_an_installation_at_work_is_well(nats_url: str, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("f")
    async def f(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({"name": "job", "function": "f", "schedule": "* * * * * *"})

        async def is_well() -> list[Finding]:
            findings = await examine(health_target(tocsin.installation))
            # Until the worker is registered, no worker reads the queue.
            is_unread = "queue-unread" in {finding.code for finding in findings if finding.level is Level.WARN}
            return [] if is_unread or worst(findings) is Level.BAD else findings

        findings = await tocsin.until(is_well)
        # A single foreign server is the only objection.
        assert {finding.code for finding in findings if finding.level is Level.WARN} == {"sync-interval", "replicas"}


async def test_an_old_server(tocsin: Running) -> None:
    state = (await look_at(health_target(tocsin.installation))).status.server
    findings = await finds(server_checks.version, tocsin, server=replace(state, version="2.11.9-beta"))
    assert_finding(findings["server-version"], Level.BAD, "2.11.9", "2.12.2")
    findings = await finds(server_checks.version, tocsin, server=replace(state, version="2.14.6"))
    assert_finding(findings["server-version"], Level.WARN, "2.14.6", "2.15.1", "nothing is archived")
    assert (await finds(server_checks.version, tocsin))["server-version"].level is Level.OK


async def test_an_account_that_is_nearly_full(tmp_path: Path) -> None:
    most = len(Stream) + len(Bucket) + 3  # two more than there are: without an `mq` queue, its stream does not exist
    streams = f"jetstream {{ max_file: 400MB, max_mem: 0, max_streams: {most} }}"
    account = f"accounts {{ A {{ {streams}, users: [ {{user: u, password: p}} ] }} }}"
    with nats_server(tmp_path / "s", account) as s:
        nats = {"url": s.url, "user": "u", "password": "p"}
        limits = {"archive": {"max_input_bytes": 1_048_576}, "output": {"max_bytes": 1_048_576}}
        limits["notifications"] = {"max_bytes": 1_048_576}
        async with initialized(s.url, tmp_path, nats=nats, **limits) as tocsin:
            findings = await finds(server_checks.limits, tocsin)
            number = len((await look_at(health_target(tocsin.installation))).status.streams)
            assert_finding(findings["jetstream-limits"], Level.WARN, f"{number} of {most} streams")


async def test_jetstream_that_is_off_is_named_at_once(tmp_path: Path) -> None:
    account = "accounts { A { users: [ {user: u, password: p} ] } }"
    with nats_server(tmp_path / "s", account) as s, capture_logs() as lines:
        nats = {"url": s.url, "user": "u", "password": "p"}
        async with bootstrap.connect(settings(s.url, tmp_path, nats=nats)) as installation:
            findings = {finding.code: finding for finding in await examine(health_target(installation))}
            assert_finding(findings["jetstream-off"], Level.BAD, "not enabled")
            with pytest.raises(LogUnavailable) as failure:
                await bootstrap.await_log(installation)
    assert failure.value.code == "jetstream-not-enabled"
    assert "log-awaited" not in {line.get("action") for line in lines}  # nothing was tried again


def monitored(folder: Path, interval: str) -> str:
    return f'http: "127.0.0.1:-1"\njetstream {{ store_dir: {json.dumps(str(folder / "store"))}, sync_interval: {interval} }}'


@pytest.mark.parametrize(("interval", "level"), [("always", Level.OK), ("2m", Level.WARN)])
async def test_whether_writes_are_flushed(interval: str, level: Level, tmp_path: Path) -> None:
    with nats_server(tmp_path / "s", monitored(tmp_path, interval)) as s:
        async with initialized(s.url, tmp_path) as tocsin:
            findings = {f.code: f for f in await examine(health_target(tocsin.installation), [_monitor(s)])}
    assert findings["sync-interval"].level is level
    assert findings["disk-space"].details == {}


async def test_a_monitor_that_does_not_answer(tocsin: Running) -> None:
    findings = {f.code: f for f in await examine(health_target(tocsin.installation), ["http://127.0.0.1:9"])}
    assert_finding(findings["sync-interval"], Level.WARN, "cannot be known", "http://127.0.0.1:9 did not answer")


def _monitor(s: Server) -> str:
    [ports] = s.folder.glob("nats-server_*.ports")
    address: str = json.loads(ports.read_text())["monitoring"][0]
    return address


async def test_an_installation_that_is_not_set_up(nats_url: str, tmp_path: Path) -> None:
    async with bootstrap.connect(settings(nats_url, tmp_path)) as installation:
        findings = await examine(health_target(installation))
        assert {f.code for f in findings if f.level is Level.BAD} == {"stream-missing"}
        assert all("tocsin init" in f.do for f in findings if f.code == "stream-missing")


async def test_half_full_stream_of_inputs_is_found(tocsin: Running) -> None:
    assert (await finds(streams.room, tocsin))["stream-filling"].level is Level.OK
    names, connection = tocsin.installation.names, tocsin.installation.connection
    name = names.stream(Stream.REPORTS)
    config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(config | {"max_bytes": 1_000}).encode())
    await connection.store(names.to_wire("report.j.e.completed.main.1.1"), b"x" * 700, {})
    findings = await finds(streams.room, tocsin)
    assert_finding(findings["stream-filling"], Level.WARN, name, "of at most 1,000 bytes")


async def test_half_full_queue_of_webhooks_is_found(nats_url: str, tmp_path: Path) -> None:
    async with initialized(nats_url, tmp_path, triggers={"webhooks": {"SECRET": ["/hooks/shop"]}}) as tocsin:
        assert (await finds(streams.room, tocsin))["stream-filling"].level is Level.OK
        names, connection = tocsin.installation.names, tocsin.installation.connection
        name = names.webhook_stream
        config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
        await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(config | {"max_bytes": 1_000}).encode())
        await connection.store(names.webhook("build"), b"x" * 700, {})
        findings = await finds(streams.room, tocsin)
    assert_finding(findings["stream-filling"], Level.WARN, name, "of at most 1,000 bytes")


async def test_many_requests_of_programs_outside_are_found(tocsin: Running) -> None:
    names, connection = tocsin.installation.names, tocsin.installation.connection
    name = names.stream(Stream.INPUTS)
    config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(config | {"max_msgs": 2}).encode())
    await connection.store(names.to_wire("public.trigger.j"), b"", {})
    findings = await finds(streams.room, tocsin)
    assert_finding(findings["stream-filling"], Level.WARN, name, "1 of at most 2 messages")
    assert "max_outside_messages" in findings["stream-filling"].do


async def test_foreign_limit_on_a_stream_is_found(tocsin: Running) -> None:
    names, connection = tocsin.installation.names, tocsin.installation.connection
    name = names.stream(Stream.LOG)
    config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(config | {"max_bytes": 1_000_000}).encode())
    findings = await finds(streams.streams, tocsin)
    assert_finding(findings["stream-drift"], Level.BAD, name, "max_bytes is 1000000 instead of -1")
    await bootstrap.initialize(tocsin.installation)
    assert (await finds(streams.streams, tocsin))["stream-drift"].level is Level.OK


async def test_stream_that_init_cannot_change_is_found(tocsin: Running) -> None:
    names, connection = tocsin.installation.names, tocsin.installation.connection
    name = names.stream(Stream.REPORTS)
    config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(config | {"deny_delete": True}).encode())
    findings = await finds(streams.streams, tocsin)
    assert "stream-drift" not in findings
    with pytest.raises(StreamUnchangeable) as refused:
        await bootstrap.initialize(tocsin.installation)
    assert_finding(findings[refused.value.code], Level.BAD, name, "deny_delete is True instead of False")
    assert findings[refused.value.code].do.lower() in str(refused.value).lower()


async def test_stream_that_init_would_empty_is_found(tocsin: Running) -> None:
    names, connection = tocsin.installation.names, tocsin.installation.connection
    name = names.stream(Stream.OUTPUT)
    config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    higher = config | {"max_msgs_per_subject": config["max_msgs_per_subject"] + 1}
    await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(higher).encode())
    subject = config["subjects"][0].replace(">", "x").replace("*", "x")
    await asyncio.gather(*(connection.store(subject, b"", {}) for _ in range(higher["max_msgs_per_subject"])))
    finding = (await finds(streams.streams, tocsin))["stream-drift"]
    assert finding.do.startswith("raise the limits in the settings, or run `tocsin init --drop-messages`")
    with pytest.raises(MessagesAtRisk):
        await bootstrap.initialize(tocsin.installation, Mode.KEEP_MESSAGES)


async def test_stream_without_compression_is_found(tocsin: Running) -> None:
    names, connection = tocsin.installation.names, tocsin.installation.connection
    name = names.stream(Stream.LOG)
    config = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    await connection.manage(f"STREAM.UPDATE.{name}", json.dumps(config | {"compression": "none"}).encode())
    findings = await finds(streams.streams, tocsin)
    assert_finding(findings["stream-drift"], Level.WARN, name, "compression is none instead of s2")


async def test_a_durable_that_is_gone(bridged: Running) -> None:
    name = bridged.installation.names.stream(Stream.MQ)
    await bridged.installation.connection.manage(f"CONSUMER.DELETE.{name}.mq-bridge-completions")
    assert_finding(
        (await finds(streams.durables, bridged))["durable-missing"], Level.BAD, f"mq-bridge-completions on {name}"
    )
    await bootstrap.initialize(bridged.installation)
    assert "durable-missing" not in await finds(streams.durables, bridged)


async def test_changed_durable_is_found(bridged: Running) -> None:
    await _change_durable(bridged, max_ack_pending=7)
    findings = await finds(streams.durables, bridged)
    assert_finding(
        findings["durable-drift"], Level.WARN, "mq-bridge-completions", "max_ack_pending is 7 instead of 20000"
    )


async def test_a_key_that_is_gone(tocsin: Running) -> None:
    await tocsin.installation.projections.remove(Bucket.INSTALLATION, INSTALLATION_KEY)
    assert_finding((await finds(streams.key, tocsin))["key-missing"], Level.BAD)


async def test_foreign_message_is_found(tocsin: Running) -> None:
    installation = tocsin.installation
    assert (await finds(streams.foreign, tocsin))["foreign-messages"].level is Level.OK
    subject = f"{installation.names.commits_prefix}.0"
    await installation.connection.client.request(subject, b'{"stream":"TOCSIN_LOG", "seq":7}')
    await tocsin.log.load(subjects.ledger("j"))
    reports = ForeignReports(installation.projections, installation.clock, installation.foreign)
    async with asyncio.timeout(20):
        while (finding := (await finds(streams.foreign, tocsin))["foreign-messages"]).level is Level.OK:
            await reports.run_once()
    assert_finding(finding, Level.WARN, "commits.0 (COMMITS 1)")


async def test_fewer_replicas_than_the_settings_ask_for(nats_url: str, tmp_path: Path) -> None:
    async with initialized(nats_url, tmp_path) as tocsin:
        installation = replace(tocsin.installation, settings=tocsin.settings.model_copy(update={"replicas": 3}))
        findings = await finds(streams.replicas, Running(installation))
        assert_finding(findings["replicas"], Level.BAD, "the settings ask for 3 replicas", "by 1")


@pytest.mark.slow
async def test_servers_that_are_away(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "nats", port=0).start() as cluster:
        async with initialized(cluster.url, tmp_path, replicas=3) as tocsin:
            here = tocsin.installation.connection.client.connected_url
            away = [node for node in cluster.nodes if here is None or node.server.port != here.port]

            async def finding(code: str) -> Finding | None:
                return next((f for f in await examine(health_target(tocsin.installation)) if f.code == code), None)

            async def is_whole() -> bool:
                codes = {f.code: f.level for f in await examine(health_target(tocsin.installation))}
                return codes.get("replicas") is Level.OK and "replica-behind" not in codes

            await _eventually(is_whole)
            away[0].server.stop()
            behind = await _eventually(lambda: finding("replica-behind"))
            assert_finding(behind, Level.WARN, "offline")
            away[1].server.stop()
            silent = await _eventually(lambda: finding("not-answered"))
            assert_finding(silent, Level.BAD)


async def _eventually(asked: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - any awaited state
    async with asyncio.timeout(200):
        while not (answer := await asked()):  # noqa: ASYNC110 - what is waited for happens in servers
            await asyncio.sleep(0.1)
        return answer


async def test_a_clock_that_is_wrong(tocsin: Running) -> None:
    wrong = ManualClock(datetime.now(UTC) + timedelta(seconds=60))
    findings = await finds(processes.machine, Running(replace(tocsin.installation, clock=wrong)))
    assert_finding(findings["clock-skew"], Level.BAD, "this machine", "ahead of the log's")
    assert (await finds(processes.machine, tocsin))["clock-skew"].level is Level.OK


async def test_a_leader_whose_clock_is_wrong(tocsin: Running) -> None:
    await _lease(tocsin, datetime.now(UTC) - timedelta(seconds=5))
    findings = await finds(processes.leaders, tocsin)
    assert_finding(findings["leader-clock"], Level.WARN, "the leader somebody", "behind the log's")
    assert "no-leader" not in findings


@pytest.mark.parametrize(
    ("offset", "level"),
    [(0.5, Level.OK), (-5.0, Level.WARN), (9.9, Level.WARN), (10.5, Level.BAD), (-120.0, Level.BAD)],
)
async def test_measured_offset_of_a_leader(tocsin: Running, offset: float, level: Level) -> None:
    await _lease(tocsin, datetime.now(UTC) - timedelta(hours=1), clock_offset=offset, clock_error=0.001)
    finding = (await finds(processes.leaders, tocsin))["leader-clock"]
    assert (finding.level, finding.details) == (level, {"seconds": abs(offset)})


async def test_leader_of_last_resort_is_found(tocsin: Running) -> None:
    await _lease(tocsin, datetime.now(UTC), clock_offset=-120.0, clock_error=0.001, is_last_resort=True)
    findings = await finds(processes.leaders, tocsin)
    assert_finding(findings["leader-clock"], Level.BAD, "last resort", "`ticker`")
    assert "no-leader" not in findings


async def test_candidate_that_stands_aside_is_found(tocsin: Running) -> None:
    await _lease(tocsin, datetime.now(UTC), clock_offset=0.0, clock_error=0.0)
    aside = json.dumps({"holder": "somebody", "clock_offset": 120.25, "clock_error": 0.5}).encode()
    projections = tocsin.installation.projections
    await projections.put(Bucket.LEADER, aside_key(TICKER_LEASE, "somebody"), aside, ttl=120)
    await projections.put(Bucket.LEADER, heir_key(TICKER_LEASE), b"another", ttl=120)
    findings = await finds(processes.leaders, tocsin)
    assert_finding(findings["clock-aside"], Level.WARN, "somebody does not stand for `ticker`", "120.2 s ahead of")
    assert findings["clock-aside"].details == {"seconds": 120.25, "error": 0.5}
    assert findings["leader-clock"].level is Level.OK


async def test_missing_leader_is_found(tocsin: Running) -> None:
    findings = await finds(processes.leaders, tocsin)
    assert_finding(findings["no-leader"], Level.BAD, "no ticker leads")
    assert_finding(findings["no-recoverer"], Level.BAD, "no recoverer leads")


async def test_missing_matcher_is_found(nats_url: str, tmp_path: Path) -> None:
    async with initialized(nats_url, tmp_path) as tocsin:
        findings = await finds(processes.leaders, tocsin)
        assert_finding(findings["no-matcher"], Level.BAD, "no matcher leads")
        assert_finding(findings["no-dependency-keeper"], Level.BAD, "no dependency-keeper leads")
        await _lease(tocsin, datetime.now(UTC), MATCHER_LEASE)
        assert "no-matcher" not in await finds(processes.leaders, tocsin)


@pytest.mark.parametrize(
    ("version", "replicas", "screener", "codes"),
    [
        ("2.15.1", 3, Screener(), ["unscreened-streams"]),
        ("2.14.0", 3, Screener(), ["unscreened-streams"]),
        ("2.12.6", 3, Screener(), []),
        ("2.15.1", 1, Screener(), []),
        ("2.15.1", 3, Screener(enabled=True), []),
    ],
)
async def test_unscreened_streams_of_a_cluster_are_found(
    version: str, replicas: int, screener: Screener, codes: list[str], tocsin: Running
) -> None:
    look = await look_at(health_target(tocsin.installation))
    settings = look.target.settings.model_copy(update={"screener": screener})
    states = {name: state and replace(state, replicas=replicas) for name, state in look.status.streams.items()}
    status = replace(look.status, server=replace(look.status.server, version=version), streams=states)
    look = replace(look, status=status, target=replace(look.target, settings=settings))
    findings = doctor.listed(await streams.headers(look))
    assert [finding.code for finding in findings] == codes
    for finding in findings:
        names = {tocsin.installation.names.stream(stream) for stream in (Stream.INPUTS, Stream.REPORTS)}
        assert names <= set(finding.details["streams"])  # type: ignore[arg-type]
        assert_finding(finding, Level.WARN, "headers")


async def test_missing_screener_is_found(nats_url: str, tmp_path: Path) -> None:
    async with initialized(nats_url, tmp_path, screener={"enabled": True}) as tocsin:
        assert_finding((await finds(streams.screeners, tocsin))["screener-missing"], Level.BAD, "worker, public")
        stage = asyncio.create_task(bootstrap.run_stages(tocsin.installation, ["screener"]))

        async def is_heard() -> bool:
            return (await finds(streams.screeners, tocsin))["screener-missing"].level is Level.OK

        await tocsin.until(is_heard)
        stage.cancel()
        await asyncio.gather(stage, return_exceptions=True)


async def test_missing_notary_is_found(nats_url: str, tmp_path: Path) -> None:
    async with initialized(nats_url, tmp_path, notary={"key": "notary.pem"}) as tocsin:
        assert_finding((await finds(processes.leaders, tocsin))["no-notary"], Level.WARN, "no notary leads")
        await _lease(tocsin, datetime.now(UTC), NOTARY_LEASE)
        assert "no-notary" not in await finds(processes.leaders, tocsin)


async def test_a_lease_that_has_ended(tocsin: Running) -> None:
    await _lease(tocsin, datetime.now(UTC))
    await tocsin.installation.projections.remove(Bucket.LEADER, TICKER_LEASE)
    assert_finding((await finds(processes.leaders, tocsin))["no-leader"], Level.BAD, "no ticker leads")


async def test_leaders_lead_however_long_doctor_reads(tocsin: Running) -> None:
    """A leader renews its lease while the other parts of the installation are read."""
    leases = "ticker", "recoverer", "matcher", "dependency-keeper"
    for lease in leases:
        await _lease(tocsin, datetime.now(UTC), lease)
    findings = await finds(processes.leaders, tocsin, later=LATER)
    assert findings["no-leader"].level is Level.OK
    assert {code for code in findings if code.startswith("no-")} == {"no-leader"}


async def _lease(tocsin: Running, renewed_at: datetime, name: str = TICKER_LEASE, **more: object) -> None:
    value = json.dumps({"holder": "somebody", "renewed_at": renewed_at.isoformat(), **more}).encode()
    await tocsin.installation.projections.put(Bucket.LEADER, name, value, ttl=120)


async def test_stage_that_does_not_follow_is_found(tocsin: Running) -> None:
    await tocsin.apply({"name": "job", "function": "f"})
    findings = await finds(processes.followers, tocsin)
    assert_finding(findings["stage-absent"], Level.BAD, "no process follows the log for the stage registrar")
    assert findings["stage-absent"].do.startswith("run `tocsin run registrar`")


async def test_follower_that_stands_still_is_found(tocsin: Running) -> None:
    await _lease(tocsin, datetime.now(UTC), follower_of("registrar"))
    await tocsin.apply({"name": "job", "function": "f"})
    assert await finds(processes.followers, tocsin, later=LATER) == {}  # it has no place yet
    place = subjects.cursor(Stream.LOG, "registrar")
    number = await tocsin.log.tail(subjects.ledger("job"))
    for cursor, codes in ((f"{number - 1}", {"stage-late"}), (f"{number - 1} 1", set()), (f"{number}", set())):
        await tocsin.installation.projections.put(Bucket.CURSORS, place, cursor.encode())
        assert await finds(processes.followers, tocsin) == {}
        findings = await finds(processes.followers, tocsin, later=LATER)
        assert {*findings} == codes
        for finding in findings.values():
            assert_finding(finding, Level.WARN, "registrar has not handled events for")


async def _answer_comes(bridged: Running) -> NatsDurable:
    """Store an answer for the MQ bridge; return a reader of its durable."""
    connection, names = bridged.installation.connection, bridged.installation.names
    await connection.store(names.to_wire("mq.scheduler.complete.job.id"), b"{}", {})
    return NatsDurable(connection, names, Stream.MQ, "mq-bridge-completions")


async def test_a_stage_that_does_not_run(bridged: Running) -> None:
    await _answer_comes(bridged)
    assert (await finds(backlog.stages, bridged))["stage-late"].level is Level.OK
    findings = await finds(backlog.stages, bridged, later=LATER)
    assert_finding(findings["stage-absent"], Level.BAD, "no process reads mq-bridge-completions", "1 wait")
    assert "tocsin run mq-bridge" in findings["stage-absent"].do


async def test_a_stage_that_is_behind(bridged: Running) -> None:
    reader = await _answer_comes(bridged)
    taken = await reader.take(1, wait=10)
    asking = asyncio.create_task(reader.take(1, wait=60))

    async def late() -> dict[str, Finding]:
        findings = await finds(backlog.stages, bridged, later=LATER)
        return findings if "stage-late" in findings and findings["stage-late"].level is Level.WARN else {}

    assert_finding(
        (await bridged.until(late))["stage-late"], Level.WARN, "mq_bridge is late on mq-bridge-completions", "1 are out"
    )
    asking.cancel()
    await asyncio.wait([asking])
    await taken[0].ack()
    await reader.close()


async def test_stage_that_hands_everything_back_is_late(bridged: Running) -> None:
    """The stage has no open request while it decides on a message."""
    reader = await _answer_comes(bridged)
    [delivery] = await reader.take(1, wait=10)
    await reader.close()
    look = await look_at(health_target(bridged.installation))
    old = tuple(
        replace(durable, oldest=look.now - LATER, state=replace(durable.state, readers=0))
        for durable in look.status.durables
        if durable.state.name == "mq-bridge-completions"
    )
    found = await backlog.stages(replace(look, status=replace(look.status, durables=old)))
    assert [finding.code for finding in found] == ["stage-late"]
    absent = await backlog.stages(replace(look, now=look.now + LATER, status=replace(look.status, durables=old)))
    assert [finding.code for finding in absent] == ["stage-absent"]
    await delivery.nak(15)


async def test_a_durable_that_gives_out_no_more(bridged: Running) -> None:
    await _change_durable(bridged, max_ack_pending=1)
    reader = await _answer_comes(bridged)
    await reader.take(1, wait=10)
    findings = await finds(backlog.stages, bridged)
    assert_finding(findings["durable-full"], Level.BAD, "mq-bridge-completions has 1 message out")
    await reader.close()


async def test_function_that_no_agent_has(tocsin: Running) -> None:
    it = tocsin.installation
    await tocsin.apply({"name": "welcome", "function": "mail/sent", "queue": "mail"})
    state, _ = await LedgerReader(it.log).load("welcome")
    registration = Registration.of(state)
    assert registration is not None
    await it.projections.put(Bucket.DEFINITIONS, "welcome", registration.encode())
    unread = (await finds(backlog.functions, tocsin))["queue-unread"]
    assert_finding(unread, Level.WARN, "no worker reads queue `mail` (job welcome)")
    assert (await look_at(health_target(it))).status.unserved == {"mail": None}
    agent = AgentRecord(name="mail-1", agent_id=ID, state=AgentState.ENABLED, queues=["mail"], functions=["mail/send"])
    await it.projections.put(Bucket.AGENTS, f"mail-1.{ID}", agent.model_dump_json().encode())
    found = (await finds(backlog.functions, tocsin))["function-unserved"]
    assert_finding(found, Level.WARN, "queue `mail` has `mail/sent`", "did you mean `mail/send`?")
    status = (await look_at(health_target(it))).status
    assert (status.agents, status.unserved) == ({"ENABLED": 1}, {"mail": 1})
    has_it = agent.model_copy(update={"functions": ["mail/sent"]})
    await it.projections.put(Bucket.AGENTS, f"mail-1.{ID}", has_it.model_dump_json().encode())
    assert (await finds(backlog.functions, tocsin))["function-unserved"].level is Level.OK


async def test_partition_without_its_shards(tocsin: Running) -> None:
    it = tocsin.installation
    assert (await finds(definitions.shards, tocsin))["no-active-shard"].what == "no job runs on shards"
    maps = ShardMaps(it.log)
    await maps.apply([Shard(shard_id="a"), Shard(shard_id="b")])
    await tocsin.apply({"name": "vacuum", "function": "f", "partition": {"shard_set": ["a", "b"]}})
    state, _ = await LedgerReader(it.log).load("vacuum")
    registration = Registration.of(state)
    assert registration is not None
    await it.projections.put(Bucket.DEFINITIONS, "vacuum", registration.encode())
    assert (await finds(definitions.shards, tocsin))["shard-not-served"].level is Level.OK
    await maps.apply([Shard(shard_id="a", state=ShardState.DISABLED), Shard(shard_id="c")])
    served = (await finds(definitions.shards, tocsin))["shard-not-served"]
    assert_finding(served, Level.WARN, "2 shards", "`a` (jobs vacuum)", "`b` (jobs vacuum)")
    await maps.apply([Shard(shard_id="a", state=ShardState.DRAINING)])
    none = (await finds(definitions.shards, tocsin))["no-active-shard"]
    assert_finding(none, Level.BAD, "1 job on shards (vacuum)", "no active shard")


async def test_jobs_that_wait_for_each_other(tocsin: Running) -> None:
    """Two registrations at the same moment may close a circle that each alone did not."""
    it = tocsin.installation
    assert (await finds(definitions.circles, tocsin))["dependency-cycle"].level is Level.OK
    await tocsin.apply({"name": "a", "function": "f", "depends_on": [{"job": "free", "within": "1h"}]})
    state, _ = await LedgerReader(it.log).load("a")
    registered = Registration.of(state)
    assert registered is not None
    for name, upstream in {"a": "b", "b": "a", "after": "a", "own": "free", "c": "d", "d": "c"}.items():
        waits = registered.definition.depends_on[0].model_copy(update={"job": upstream})
        definition = registered.definition.model_copy(update={"name": name, "depends_on": (waits,)})
        registration = registered.model_copy(update={"definition": definition})
        await it.projections.put(Bucket.DEFINITIONS, name, registration.encode())
    found = (await finds(definitions.circles, tocsin))["dependency-cycle"]
    assert_finding(found, Level.BAD, "4 jobs wait for each other in a circle: ", "a → b", "c → d")
    assert {"a", "b", "c", "d"} == set(cast("list[str]", found.details["jobs"]))


async def test_shards_without_an_owner(tocsin: Running) -> None:
    it = tocsin.installation
    await ShardMaps(it.log).apply(
        [Shard(shard_id="a"), Shard(shard_id="b"), Shard(shard_id="c", state=ShardState.DISABLED)]
    )
    assert (await finds(definitions.owners, tocsin))["shard-without-owner"].level is Level.OK
    for shard in ("a", "c"):
        owner = OwnershipAssigned(resource=f"shard-{shard}", name="mail-1", agent_id=ID, reason="vacant")
        await it.log.append(owner, expect=0)
    lost = (await finds(definitions.owners, tocsin))["shard-without-owner"]
    assert_finding(lost, Level.BAD, "1 shard", "may own it: a")
    agent = AgentRecord(name="mail-1", agent_id=ID, state=AgentState.ENABLED, shards=["a", "z"])
    await it.projections.put(Bucket.AGENTS, f"mail-1.{ID}", agent.model_dump_json().encode())
    found = await finds(definitions.owners, tocsin)
    assert found["shard-without-owner"].level is Level.OK
    assert_finding(found["shard-unknown"], Level.WARN, "1 shard", "does not have: z")


async def test_receiver_that_accepts_no_notification(tocsin: Running) -> None:
    log = tocsin.installation.log
    assert (await finds(backlog.notified, tocsin))["notifications-not-accepted"].level is Level.OK
    at = datetime.now(UTC)

    async def answered(number: str, channel: str, *answers: NotificationFact) -> None:
        raised = NotificationRaised(job="vacuum", id=number, channel=channel, kind=Kind.FAILED, at=at)
        sequence = await log.append(raised, expect=0)
        for answer in answers:
            sequence = await log.append(answer, expect=sequence)

    failed = {"attempt": 1, "error": "status 503", "next_attempt_at": at}
    await answered("n1", "ops", validated(NotificationAttemptFailed, {"job": "vacuum", "id": "n1", **failed}))
    await answered("n2", "mail", NotificationDelivered(job="vacuum", id="n2", attempt=1))
    refused = (await finds(backlog.notified, tocsin))["notifications-not-accepted"]
    assert_finding(refused, Level.BAD, "`ops` (status 503)")
    await answered("n3", "ops", NotificationDelivered(job="vacuum", id="n3", attempt=1))
    assert (await finds(backlog.notified, tocsin))["notifications-not-accepted"].level is Level.OK


async def test_trigger_with_too_many_keys(tocsin: Running) -> None:
    log, at = tocsin.installation.log, datetime.now(UTC)
    trigger = {"job": "load", "key": "body.execution_id", "debounce": "30s"}
    await tocsin.apply({"name": "load", "function": "f"}, {"name": "invoice", "function": "f", "triggers": [trigger]})
    registration = Registration.of((await LedgerReader(log).load("invoice"))[0])
    assert registration is not None
    await tocsin.installation.projections.put(Bucket.DEFINITIONS, "invoice", registration.encode())
    for number, reason in enumerate(("debounced", "too_many_keys")):
        assert (await finds(trigger_sources.keys, tocsin))["trigger-keys"].level is Level.OK
        event = EventReference(stream="LOG", sequence=1, subject="load.completed", time=at)
        record = validated(
            EventIgnored, {"job": "invoice", "trigger_id": "t", "event": event.document(), "reason": reason}
        )
        await log.publish(subjects.subject_of(record), record, message_id=f"r{number}")
    full = (await finds(trigger_sources.keys, tocsin))["trigger-keys"]
    assert_finding(full, Level.WARN, "1 job", "invoice")


async def register(tocsin: Running, *definitions: dict[str, Any]) -> None:
    """Define jobs, and show them as the registrar does."""
    await tocsin.apply(*definitions)
    for definition in definitions:
        registration = Registration.of((await LedgerReader(tocsin.installation.log).load(definition["name"]))[0])
        assert registration is not None
        await tocsin.installation.projections.put(Bucket.DEFINITIONS, definition["name"], registration.encode())


async def test_refusal_of_a_stream_is_no_absence(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: NatsInspection, name: str) -> StreamState | None:
        raise RequestRefused(f"STREAM.INFO.{name}: refused", "refused")

    async with initialized(nats_url, tmp_path, triggers={"streams": {"SHOP": ["shop.>"]}}) as tocsin:
        monkeypatch.setattr(NatsInspection, "stream", refuse)
        assert await unheard_streams_of(tocsin.installation) == ((), ())


async def test_trigger_whose_events_are_not_heard(nats_url: str, tmp_path: Path) -> None:
    shop = f"shop{uuid4().hex[:8]}"
    opened = {"streams": {shop.upper(): [f"{shop}.>"]}, "kv": {f"{shop}flags": [">"]}}
    async with initialized(nats_url, tmp_path, triggers=opened) as tocsin:
        installation, orders = tocsin.installation, {"nats": f"{shop}.orders"}
        await register(
            tocsin,
            {"name": "removed", "function": "f", "triggers": [{"nats": f"{shop}x.orders"}]},
            {"name": "flags", "function": "f", "triggers": [{"kv": f"{shop}flags/a.>"}]},
            {"name": "invoice", "function": "f", "triggers": [orders]},
            {"name": "off", "function": "f", "enabled": False, "triggers": [{"nats": "other.orders"}]},
        )
        found = await finds(trigger_sources.sources, tocsin)
        assert found.keys() == {"trigger-not-opened", "trigger-source-missing"}
        assert_finding(found["trigger-not-opened"], Level.BAD, "1 trigger", f"removed ({shop}x.orders)")
        assert_finding(found["trigger-source-missing"], Level.BAD, f"flags ({shop}flags/a.>)", "invoice")
        seen = (await look_at(health_target(installation))).status
        sources = [f"flags ({shop}flags/a.>)", f"invoice ({shop}.orders)", f"removed ({shop}x.orders)"]
        assert list(seen.unheard_triggers) == sources
        absent = sorted([f"KV_{shop}flags", shop.upper()])
        listed = await tocsin.public(f"$JS.API.CONSUMER.LIST.{shop.upper()}")
        assert await unheard_streams_of(installation) == (tuple(absent), ())
        await installation.connection.client.flush()
        assert listed.empty()
        assert (
            f"3 triggers whose source is not opened or does not exist, the first is {sources[0]}"
            in problems_of(seen)[-1]
        )

        config = {"name": shop.upper(), "subjects": [f"{shop}.>"], "storage": "memory"}
        await installation.connection.manage(f"STREAM.CREATE.{shop.upper()}", json.dumps(config).encode())
        seen = (await look_at(health_target(installation))).status
        assert list(seen.unheard_triggers) == [sources[0], sources[2]]
        lists = await tocsin.public(f"$JS.API.CONSUMER.LIST.{shop.upper()}")
        unheard = (await finds(trigger_sources.sources, tocsin))["trigger-unheard"]
        await installation.connection.client.flush()
        assert lists.qsize() == 1
        assert_finding(unheard, Level.BAD, "1 trigger", f"invoice ({shop}.orders)")

        event_streams = NatsEventStreams(installation.connection, installation.names)
        trigger = EventTrigger.model_validate(orders)
        name = ids.event_durable("invoice", trigger.source)
        await event_streams.create(EventDurable(name, shop.upper(), (f"{shop}.orders",)))
        assert "trigger-unheard" not in await finds(trigger_sources.sources, tocsin)
        await installation.connection.store(f"{shop}.orders", b"{}", {})
        assert "trigger-late" not in await finds(trigger_sources.sources, tocsin)
        seen = (await look_at(health_target(installation))).status
        assert seen.waiting_events == {f"invoice ({shop}.orders)": 1}
        assert f"1 event waits in streams of programs for invoice ({shop}.orders)" in map(str, shown(seen))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trigger_sources, "LATE", timedelta(seconds=-1))
            late = (await finds(trigger_sources.sources, tocsin))["trigger-late"]
        assert_finding(late, Level.BAD, "1 trigger", f"invoice ({shop}.orders): 1")


async def test_job_that_refuses_all_its_events(nats_url: str, tmp_path: Path) -> None:
    shop = f"shop{uuid4().hex[:8]}"
    opened = {"streams": {shop.upper(): [f"{shop}.>"]}}
    trigger = {"nats": f"{shop}.orders", "input": {"order": "body.id"}}
    async with running(nats_url, tmp_path, worker=Worker(), triggers=opened) as tocsin:
        connection = tocsin.installation.connection
        config = {"name": shop.upper(), "subjects": [f"{shop}.>"], "storage": "memory"}
        await connection.manage(f"STREAM.CREATE.{shop.upper()}", json.dumps(config).encode())
        await tocsin.apply({"name": "invoice", "function": "f", "triggers": [trigger]})

        async def is_heard() -> bool:
            found = await finds(trigger_sources.sources, tocsin)
            return found["trigger-unheard"].what == "the events of 1 trigger are heard" if len(found) == 1 else False

        await tocsin.until(is_heard)
        for number in range(trigger_sources.REFUSALS):
            if number == trigger_sources.REFUSALS - 1:
                found = await finds(trigger_sources.refusals, tocsin)
                assert found["trigger-refusing"].level is Level.OK
            await connection.store(f"{shop}.orders", b"{}", {})

        async def refusing() -> list[Finding]:
            finding = (await finds(trigger_sources.refusals, tocsin))["trigger-refusing"]
            return [] if finding.level is Level.OK else [finding]

        [finding] = await tocsin.until(refusing)
        assert_finding(finding, Level.BAD, "1 job", "invoice")


async def test_calendar_of_a_job_ends(tocsin: Running) -> None:
    year = datetime.now(UTC).year + 1
    exclude = [{"name": "holidays", "days": [f"{year}-12-24"], "until": f"{year}-12-31"}]
    job = {"name": "payroll", "schedule": "@daily", "function": "f", "exclude": exclude}
    await tocsin.apply(job)
    state, _ = await LedgerReader(tocsin.installation.log).load("payroll")
    registration = Registration.of(state)
    assert registration is not None
    await tocsin.installation.projections.put(Bucket.DEFINITIONS, "payroll", registration.encode())
    assert (await finds(definitions.calendars, tocsin))["calendar-ends"].level is Level.OK
    ended = (await finds(definitions.calendars, tocsin, later=timedelta(days=800)))["calendar-ends"]
    assert_finding(ended, Level.WARN, f"`payroll`: the calendar holidays is known up to {year}-12-31")


async def test_a_queue_without_a_worker(tocsin: Running) -> None:
    projections = tocsin.installation.projections
    waiting = QueueBacklog(queue="later", waiting=1)
    await projections.put(Bucket.QUEUES, "later", waiting.model_dump_json().encode())
    findings = await finds(backlog.queues, tocsin)
    assert_finding(findings["queue-unattended"], Level.BAD, "1 task in queue `later`")
    taken = waiting.model_copy(update={"running": 1})
    await projections.put(Bucket.QUEUES, "later", taken.model_dump_json().encode())
    assert (await finds(backlog.queues, tocsin))["queue-unattended"].level is Level.OK


async def test_tasks_wait_for_an_absent_function(tocsin: Running) -> None:
    projections = tocsin.installation.projections
    agent = AgentRecord(name="mail-1", agent_id=ID, state=AgentState.ENABLED, queues=["mail"], functions=["mail/send"])
    await projections.put(Bucket.AGENTS, f"mail-1.{ID}", agent.model_dump_json().encode())
    waiting = QueueBacklog(queue="mail", waiting=2, functions={"mail/send": 1, "mail/sent": 1})
    await projections.put(Bucket.QUEUES, "mail", waiting.model_dump_json().encode())
    found = (await finds(backlog.functions, tocsin))["function-unserved"]
    assert_finding(found, Level.WARN, "queue `mail` has `mail/sent` (tasks wait)", "did you mean `mail/send`?")
    assert (await look_at(health_target(tocsin.installation))).status.unserved == {"mail": 1}


async def test_limit_that_holds_back_tasks_for_long() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    queues = [
        replace(QUIET, name="late", held_back=3, oldest=noon - timedelta(minutes=11)),
        replace(QUIET, name="new", held_back=3, oldest=noon - timedelta(minutes=9)),
        replace(QUIET, name="free", oldest=noon - timedelta(hours=9)),
    ]
    context: Any = SimpleNamespace(status=SimpleNamespace(queues=queues), age=lambda at: noon - at)
    [finding] = await backlog.limits(context)
    assert_finding(finding, Level.WARN, "limits hold back 3 tasks of queue `late`", "660 s")
    context.status.queues = queues[1:]
    assert [finding.level for finding in await backlog.limits(context)] == [Level.OK]


async def _change_durable(bridged: Running, **fields: object) -> None:
    connection, on = bridged.installation.connection, bridged.installation.names.stream(Stream.MQ)
    config = (await connection.manage(f"CONSUMER.INFO.{on}.mq-bridge-completions"))["config"] | fields
    request = {"stream_name": on, "config": config, "action": "update"}
    await connection.manage(f"CONSUMER.CREATE.{on}.mq-bridge-completions", json.dumps(request).encode())


def _requested(kind: type[Planned | Admitted]) -> Any:  # noqa: ANN401 - either
    at = datetime.now(UTC).replace(microsecond=0)
    return kind(
        job="job", execution_id="01a1ffef-0000-7000-8000-000000000001", scheduled_time=at, trigger="cron", plan=plan()
    )


def _dispatched() -> tuple[Admitted, Dispatched]:
    admitted: Admitted = _requested(Admitted)
    [task] = execution.dispatch(execution.fold(recorded([admitted])), key=KEY)
    return admitted, task


async def test_an_instant_without_an_execution(tocsin: Running) -> None:
    await tocsin.apply({"name": "job", "function": "f", "schedule": "* * * * *"})
    definition = await tocsin.log.tail(subjects.ledger("job"))
    at = datetime.now(UTC).replace(second=0, microsecond=0)
    await store(tocsin, Due(job="job", scheduled_time=at, definition=definition))
    assert (await finds(deadlines.occurrences, tocsin))["due-unplanned"].level is Level.OK
    findings = await finds(deadlines.occurrences, tocsin, later=LATER)
    assert_finding(findings["due-unplanned"], Level.BAD, "job at")


@pytest.mark.parametrize("kind", ["ledger", "execution", "lock"])
async def test_unreadable_event_hides_no_other_job(tocsin: Running, kind: str) -> None:
    at = datetime.now(UTC).replace(second=0, microsecond=0)
    await store(tocsin, Due(job="job", scheduled_time=at, definition=1))
    await store(tocsin, _requested(Planned).changed(execution_id=ID.replace("0", "1")))
    await _hold(tocsin, _started())
    subject = {
        "ledger": "ledger.other.due",
        "execution": f"execution.other.{ID}.planned",
        "lock": "lock.other.acquired",
    }
    await unreadable(tocsin, subject[kind])
    found: dict[str, Finding] = {}
    for check in (deadlines.occurrences, deadlines.executions, deadlines.locks, streams.unreadable):
        found |= await finds(check, tocsin, later=2 * LATER)
    assert {"due-unplanned", "undecided", "overrun", "lock-overdue"} <= {
        code for code, finding in found.items() if finding.level is Level.BAD
    }
    assert_finding(found["event-unreadable"], Level.BAD, subject[kind])


async def unreadable(tocsin: Running, subject: str) -> None:
    """Store an event as a stage of another version does."""
    commits = tocsin.installation.commits
    view, seal = await commits.view(), await commits._seal()
    await view.end(Stream.LOG)
    assert view.chain is not None
    event, at = CommitEvent(subject, "other", "@", msgspec.Raw(b'{"v": 9}')), tocsin.installation.clock.now()
    draft = seal.write(view.chain.head, writer="other", at=at, taken={}, events=[event])
    await commits.log.append(0, draft.body, expect=view.chain.head.sequence)


async def test_undecided_execution_is_found(tocsin: Running) -> None:
    await store(tocsin, _requested(Planned))
    assert (await finds(deadlines.executions, tocsin))["overrun"].level is Level.OK
    assert_finding((await finds(deadlines.executions, tocsin, later=LATER))["undecided"], Level.BAD, "job 01a1ffef")


async def test_wait_beyond_its_timeout_is_found(tocsin: Running) -> None:
    of = plan().changed(depends_on=(JobDependency(job="load"),), dependency_timeout=1_800.0)
    await store(tocsin, _requested(Planned).changed(plan=of))
    assert (await finds(deadlines.executions, tocsin))["overrun"].level is Level.OK
    findings = await finds(deadlines.executions, tocsin, later=LATER)
    assert_finding(findings["dependency-unknown"], Level.BAD, "job 01a1ffef", "beyond their `dependency_timeout`")


async def test_execution_waiting_for_its_lock_is_no_finding(tocsin: Running) -> None:
    planned = _requested(Planned)
    await store(
        tocsin,
        planned,
        Queued(job="job", execution_id=planned.execution_id, scheduled_time=planned.scheduled_time),
    )
    assert (await finds(deadlines.executions, tocsin, later=LATER))["overrun"].level is Level.OK


async def test_an_execution_without_a_task(tocsin: Running) -> None:
    await store(tocsin, _requested(Admitted))
    assert_finding((await finds(deadlines.executions, tocsin, later=LATER))["undispatched"], Level.BAD)


async def test_unclaimed_task_is_found(tocsin: Running) -> None:
    await store(tocsin, *_dispatched())
    assert_finding((await finds(deadlines.executions, tocsin, later=LATER))["unclaimed"], Level.WARN)


async def test_an_attempt_that_is_past_its_timeout(tocsin: Running) -> None:
    admitted, task = _dispatched()
    started = Started(
        job="job",
        execution_id=task.execution_id,
        step="main",
        attempt=1,
        delivery=1,
        worker="w",
    )
    await store(tocsin, admitted, task, started)
    assert (await finds(deadlines.executions, tocsin))["overrun"].level is Level.OK
    assert_finding((await finds(deadlines.executions, tocsin, later=LATER))["overrun"], Level.BAD, "1 executions")


@pytest.mark.parametrize("lost", [1, 2])
async def test_task_that_lost_two_workers(tocsin: Running, lost: int) -> None:
    admitted, task = _dispatched()
    deaths = (Death(agent="mail.1", at=datetime.now(UTC)),) * lost
    release: dict[str, Any] = {
        "job": "job",
        "execution_id": task.execution_id,
        "step": "main",
        "attempt": 1,
        "delivery": 1,
    }
    await store(tocsin, admitted, task, Released(**release, task=1, reason="lease_over", deaths=deaths))
    found = await finds(deadlines.executions, tocsin)
    assert ("worker-lost" in found) is (lost == 2)
    if lost == 2:
        assert_finding(found["worker-lost"], Level.WARN, "job")


async def _hold(tocsin: Running, *facts: Message) -> None:
    """An execution that moved, and holds its job's lock."""
    admitted, task = _dispatched()
    held = Acquired(job="job", execution_id=task.execution_id, scheduled_time=admitted.scheduled_time, ttl=120)
    await store(tocsin, held, admitted, task, *facts)


def _started(attempt: int = 1) -> Started:
    _, task = _dispatched()
    return Started(job="job", execution_id=task.execution_id, step="main", attempt=attempt, delivery=1, worker="w")


async def test_lock_of_a_retried_execution_is_not_overdue(tocsin: Running) -> None:
    _, task = _dispatched()
    retried = RetryScheduled(
        job="job",
        execution_id=task.execution_id,
        step="main",
        attempt=1,
        error=Failure(type="busy", message="later"),
        delay=7_200,
        next_attempt_at=datetime.now(UTC) + 2 * LATER,
    )
    await _hold(tocsin, _started(), retried)
    assert (await finds(deadlines.locks, tocsin, later=LATER))["lock-overdue"].level is Level.OK
    assert (await finds(deadlines.locks, tocsin, later=3 * LATER))["lock-overdue"].level is Level.BAD


async def test_lock_of_a_late_attempt_is_not_overdue(tocsin: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The execution waited for a worker longer than all its attempts may take."""
    await _hold(tocsin, _started())
    load = provision.fold_of

    async def load_late(installation: Installation) -> Fold:
        """The worker took the task an hour after the lock was acquired."""
        fold = await load(installation)
        fold.events = {
            scope: [
                msgspec.structs.replace(r, time=r.time + LATER) if isinstance(r.message, Started) else r for r in events
            ]
            for scope, events in fold.events.items()
        }
        return fold

    monkeypatch.setattr(provision, "fold_of", load_late)
    assert (await finds(deadlines.locks, tocsin, later=LATER))["lock-overdue"].level is Level.OK
    assert (await finds(deadlines.locks, tocsin, later=2 * LATER))["lock-overdue"].level is Level.BAD


async def test_lock_of_an_unclaimed_execution_is_not_overdue(tocsin: Running) -> None:
    admitted, task = _dispatched()
    held = Acquired(job="job", execution_id=task.execution_id, scheduled_time=admitted.scheduled_time, ttl=120)
    await store(tocsin, admitted, task, held)
    assert (await finds(deadlines.locks, tocsin, later=LATER))["lock-overdue"].level is Level.OK
    assert_finding((await finds(deadlines.executions, tocsin, later=LATER))["unclaimed"], Level.WARN)


async def test_a_lock_that_is_held_too_long(tocsin: Running) -> None:
    planned = _requested(Planned)
    held = Acquired(job="job", execution_id=planned.execution_id, scheduled_time=planned.scheduled_time, ttl=120)
    await store(tocsin, planned, held)
    assert (await finds(deadlines.locks, tocsin))["lock-overdue"].level is Level.OK
    assert_finding((await finds(deadlines.locks, tocsin, later=LATER))["lock-overdue"], Level.BAD, "job by 01a1ffef")


async def test_a_history_that_is_nowhere(tocsin: Running) -> None:
    findings = await finds(backlog.history, tocsin)
    assert_finding(findings["history-unreachable"], Level.BAD, "no history is kept in")


async def test_a_history_that_is_behind(tocsin: Running) -> None:
    async with tocsin.installation.history():
        pass  # a recorder was there once
    await store(tocsin, _requested(Planned))
    assert (await finds(backlog.history, tocsin))["history-behind"].level is Level.OK
    found = (await finds(backlog.history, tocsin, later=LATER))["history-behind"]
    assert_finding(found, Level.WARN, "nothing of this installation is recorded in")
    async with tocsin.installation.history() as history:
        await history.record(Stream.LOG, [], after=0, upto=1)
    await store(tocsin, _requested(Planned))
    assert_finding((await finds(backlog.history, tocsin, later=LATER))["history-behind"], Level.BAD, "at 1 of 2")


async def test_unavailable_history_is_found(nats_url: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    database = {"url": f"sqlite:///{tmp_path / 'folder'}"}
    async with initialized(nats_url, tmp_path, database=database) as tocsin:
        assert_finding((await finds(backlog.history, tocsin))["history-unreachable"], Level.BAD, "unable to open")
