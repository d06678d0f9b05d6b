"""Provisioning a server: idempotent, with a report of changes and obstacles."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client, ServerVersion

from tests.conformance.given import report
from tests.conformance.worlds import fresh_names
from tests.durables import NatsDurable
from tocsin import subjects
from tocsin.adapters.nats.admin import provision as provisioning
from tocsin.adapters.nats.admin.desired_state import all_streams, durable_specs, stream_config
from tocsin.adapters.nats.admin.provision import Change, Mode, NatsStreamPurge, ProvisionError, provision
from tocsin.adapters.nats.admin.provision_errors import (
    MessagesAtRisk,
    ServerTooOld,
    StreamRejected,
    StreamUnchangeable,
    SubjectsOverlap,
)
from tocsin.adapters.nats.admin.resources import loss_by
from tocsin.adapters.nats.client.connection import Connection, connect
from tocsin.adapters.nats.client.jetstream_wait import find_key
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.client.wire import JetStreamError, StreamFull
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.adapters.nats.log.projections import NatsProjections
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.adapters.nats.server.process import OLDEST_SERVER, installed_binary
from tocsin.domain.events import Completion
from tocsin.ports import DurableSpec, LogUnavailable, Publish
from tocsin.settings import Settings
from tocsin.settings.model import Output
from tocsin.settings.s3 import Archive
from tocsin.settings.triggers import Triggers
from tocsin.subjects import (
    INPUT_STREAMS,
    INSTALLATION_KEY,
    LAYOUT,
    LAYOUT_KEY,
    OUTPUT_STREAMS,
    SERVER_STREAMS,
    Bucket,
    Stream,
)

REPORTS = DurableSpec("reports", Stream.REPORTS, ("report.>",))
BRIDGED = Settings.model_validate({"queues": {"outside": {"transport": "mq"}}})
DURABLES = durable_specs([REPORTS], BRIDGED)
START_S = 10.0


def limited(size: int, age: float = 604_800.0) -> Settings:
    output = Output.model_construct(max_bytes=size, max_age=age)
    return Settings(archive=Archive.model_construct(max_input_bytes=size), output=output)


async def test_everything_is_created_once(connection: Connection, names: Names) -> None:
    first = await provision(connection, names, BRIDGED, durables=DURABLES)
    second = await provision(connection, names, BRIDGED, durables=DURABLES)

    reports, mq = map(names.stream, (Stream.REPORTS, Stream.MQ))
    assert [(change.kind, change.name) for change in first] == [
        *(("stream", names.stream(stream)) for stream in SERVER_STREAMS),
        *(("stream", names.bucket_stream(bucket)) for bucket in Bucket),
        ("stream", names.archive_stream),
        ("stream", names.commits_stream),
        ("consumer", f"{reports}/reports"),
        ("consumer", f"{mq}/job-executors"),
        ("key", f"{names.root}_installation/report-key"),
    ]
    assert {change.action for change in first} == {"created"}
    assert [(change.kind, change.name) for change in second] == [(change.kind, change.name) for change in first]
    assert {change.action for change in second} == {"unchanged"}


async def test_every_stream_of_an_installation_has_a_limit(
    connection: Connection, names: Names, nats_url: str, tmp_path: Path
) -> None:
    config = tmp_path / "tocsin.yaml"
    config.write_text(
        json.dumps(
            {
                "root": names.root,
                "nats": {"url": nats_url},
                "public_prefix": f"{names.root}-cron",
                "trigger_prefix": f"{names.root}-cron.trigger",
                "mq_prefix": f"{names.root}-mq",
                "queues": {"team": {"transport": "mq"}},
                "triggers": {"subjects": [f"{names.root}-orders.>"], "webhooks": {"SECRET": ["/hooks/orders"]}},
            }
        )
    )
    command = [sys.executable, "-m", "tocsin", "--config", str(config), "--data-dir", str(tmp_path), "init"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    configs: dict[str, Any] = {}
    while page := (await connection.manage("STREAM.LIST", json.dumps({"offset": len(configs)}).encode()))["streams"]:
        configs |= {each["config"]["name"]: each["config"] for each in page}
    made = {name: each for name, each in configs.items() if names.root in name or name in all_streams(names)}
    assert made.keys() == set(all_streams(names))
    unlimited = {name for name, each in made.items() if max(each["max_bytes"], each["max_msgs"]) <= 0}
    # A limit would lose decisions. Only stages and the API write there, as much as limited inputs and the quotas of jobs permit.
    decisions = names.commits_stream, names.stream(Stream.LOG)
    assert unlimited == {*decisions, names.archive_stream}


async def test_plan_shows_changes_and_makes_none(connection: Connection, names: Names) -> None:
    planned = await provision(connection, names, BRIDGED, durables=DURABLES, mode=Mode.PLAN)
    stored = await connection.manage("STREAM.NAMES", json.dumps({"subject": f"{names.root}.>"}).encode())
    assert not stored["streams"]
    assert planned == await provision(connection, names, BRIDGED, durables=DURABLES, mode=Mode.KEEP_MESSAGES)

    wider = DurableSpec("reports", Stream.REPORTS, ("report.>", "outside.>"))
    again = await provision(connection, names, BRIDGED, durables=[wider], mode=Mode.PLAN)
    assert [change.name for change in again if change.action == "updated"] == [
        f"{names.stream(Stream.REPORTS)}/reports"
    ]
    made = await provision(connection, names, BRIDGED, durables=[wider])
    assert again == made


async def test_plan_warns_of_subjects_captured_no_more(connection: Connection, names: Names) -> None:
    orders, sensors = f"{names.root}-orders.>", f"{names.root}-sensors.>"

    async def changes(*captured: str, mode: Mode = Mode.APPLY) -> dict[str, Change]:
        settings = Settings(triggers=Triggers(subjects=captured, max_bytes=2_000_000, max_age=3_600.0))
        return {each.name: each for each in await provision(connection, names, settings, mode=mode)}

    await changes(orders.replace(">", "new"), sensors)
    wider = (await changes(orders, sensors))[names.captured_stream]
    assert (wider.action, wider.warning) == ("updated", None)
    planned = (await changes(orders, mode=Mode.PLAN))[names.captured_stream]
    assert planned.warning is not None
    assert sensors in planned.warning
    assert orders not in planned.warning
    assert sensors in planned.line(is_plan=True).partition("lost")[0]
    assert (await changes(orders))[names.captured_stream].warning == planned.warning


async def test_plan_finds_captured_subjects(connection: Connection, names: Names) -> None:
    foreign = {"name": f"{names.root}_foreign", "subjects": [f"{names.root}.0.>"], "storage": "memory"}
    await connection.manage(f"STREAM.CREATE.{foreign['name']}", json.dumps(foreign).encode())
    with pytest.raises(SubjectsOverlap) as caught:
        await provision(connection, names, Settings(), mode=Mode.PLAN)
    assert caught.value.other == foreign["name"]


async def test_lower_limits_keep_messages_by_default(connection: Connection, names: Names) -> None:
    """No other stream is changed either."""
    await provision(connection, names, Settings())
    stream = names.stream(Stream.OUTPUT)
    before = await _stream(connection, stream)
    subject = before["subjects"][0].replace("*", "x").replace(">", "x.")
    for number in range(20):
        await connection.store(f"{subject}{number}", b"x" * 200, {})
    lower = limited(2_000)

    with pytest.raises(MessagesAtRisk, match=stream) as caught:
        await provision(connection, names, lower, mode=Mode.KEEP_MESSAGES)
    assert caught.value.streams[stream].startswith("max_bytes 2000 removes the oldest of ")
    assert await _stream(connection, stream) == before
    assert (await _stream(connection, names.stream(Stream.INPUTS)))["max_bytes"] == Archive().max_input_bytes

    made = await provision(connection, names, lower)
    assert {change.name: change.loss for change in made if change.loss} == caught.value.streams
    assert (await connection.manage(f"STREAM.INFO.{stream}"))["state"]["messages"] < 20


STATE = {"bytes": 5_000, "messages": 40, "first_ts": "2026-03-01T10:00:00.5Z"}


@pytest.mark.parametrize(
    ("stored", "wanted", "loss"),
    [
        ({"max_bytes": -1}, {"max_bytes": 4_999}, "max_bytes 4999 removes the oldest of 5000 bytes"),
        ({"max_bytes": -1}, {"max_bytes": 5_000}, None),
        ({"max_bytes": 4_000}, {"max_bytes": 4_500}, None),
        ({"max_bytes": 9_000}, {"max_bytes": -1}, None),
        ({"max_bytes": -1}, {"max_bytes": 1, "discard": "new"}, None),
        ({}, {"max_msgs": 39}, "max_msgs 39 removes the oldest of 40 messages"),
        ({}, {"max_msgs_per_subject": 3}, "max_msgs_per_subject 3 can remove some of 40 messages"),
        ({}, {"max_msgs_per_subject": 3, "discard": "new"}, "max_msgs_per_subject 3 can remove some of 40 messages"),
        ({"max_age": 0}, {"max_age": 86_400 * 10**9}, "max_age 86400 s removes messages, the oldest of 2 days"),
        ({"max_age": 0}, {"max_age": 4 * 86_400 * 10**9}, None),
        ({"max_age": 86_400 * 10**9}, {"max_age": 0}, None),
    ],
)
def test_loss_of_messages_by_lower_limits(stored: dict[str, Any], wanted: dict[str, Any], loss: str | None) -> None:
    info = {"config": stored, "state": STATE, "ts": "2026-03-03T10:00:01.123456789Z"}
    assert loss_by(info, {"discard": "old"} | wanted) == loss


async def test_lower_limits_without_losses_are_applied(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    changes = await provision(connection, names, limited(5_000, 3_600), mode=Mode.KEEP_MESSAGES)
    assert {"max_bytes", "max_age"} == {name for change in changes for name in change.fields}


async def test_main_streams_compress_what_they_store(connection: Connection, names: Names) -> None:
    await provision(connection, names, BRIDGED)
    log, plain = NatsEventLog(connection, names), names.stream(Stream.MQ)
    config = await _stream(connection, plain)
    await connection.manage(f"STREAM.UPDATE.{plain}", json.dumps(config | {"compression": "none"}).encode())

    assert {stream for stream in SERVER_STREAMS if await _compression(connection, names, stream) != "s2"} == {Stream.MQ}
    await provision(connection, names, BRIDGED)
    assert {await _compression(connection, names, stream) for stream in SERVER_STREAMS} == {"s2"}

    await log.publish(subjects.subject_of(report()), report(), message_id="1")
    assert [recorded.message for recorded in await log.read("report.>")] == [report()]


async def test_nothing_in_a_main_stream_ends_by_itself(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings(archive=Archive(enabled=False)))

    config = await _stream(connection, names.stream(Stream.LOG))

    unlimited = {"max_age": 0, "max_bytes": -1, "max_msgs": -1, "max_msgs_per_subject": -1, "max_consumers": -1}
    assert {field: config[field] for field in unlimited} == unlimited
    assert (config["retention"], config["storage"], config["num_replicas"]) == ("limits", "file", 1)
    assert config["allow_direct"]
    assert config["deny_delete"]
    assert not config.get("deny_purge")
    assert not any(config.get(name) for name in ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs"))


def test_public_events_leave_with_the_hot_window() -> None:
    ages = {
        enabled: stream_config(Stream.LOG, Names("t"), Settings(archive=Archive(enabled=enabled)))
        for enabled in (True, False)
    }
    assert {enabled: config["max_age"] for enabled, config in ages.items()} == {True: 86_400 * 10**9, False: 0}


async def test_short_hot_window_is_accepted(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings(archive=Archive(hot_window=5.0)))
    assert (await _stream(connection, names.stream(Stream.LOG)))["duplicate_window"] == 5 * 10**9


@pytest.mark.parametrize("stream", sorted(INPUT_STREAMS))
async def test_stream_of_inputs_is_limited_and_plain(connection: Connection, names: Names, stream: Stream) -> None:
    await provision(connection, names, limited(5_000_000))

    config = await _stream(connection, names.stream(stream))

    size = 790_528 if stream is Stream.REQUESTS else 262_144
    assert (config["discard"], config["max_bytes"], config["max_msg_size"]) == ("new", 5_000_000, size)
    assert config["max_msgs"] == (100_000 if stream is Stream.INPUTS else -1)
    assert config["deny_delete"] is (stream is not Stream.REPORTS)  # the archiver removes those without proof
    assert bool(config.get("allow_atomic")) is (stream is Stream.REQUESTS)  # the jobs of one request
    allowed = ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs", "deny_purge")
    assert not any(config.get(feature) for feature in allowed)


@pytest.mark.parametrize("stream", sorted(OUTPUT_STREAMS))
async def test_stream_of_output_is_limited(connection: Connection, names: Names, stream: Stream) -> None:
    await provision(connection, names, limited(5_000_000, 3_600))

    config = await _stream(connection, names.stream(stream))

    bound = OUTPUT_STREAMS[stream]
    assert (config["discard"], config["max_bytes"], config["max_age"]) == ("old", 5_000_000, 3_600 * 10**9)
    assert (config["max_msgs_per_subject"], config["max_msg_size"]) == (bound.messages, bound.size)
    allowed = ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs", "allow_atomic")
    assert not any(config.get(feature) for feature in allowed)


async def test_full_stream_of_inputs_refuses_until_room(connection: Connection, names: Names) -> None:
    await provision(connection, names, limited(3_000))
    log = NatsEventLog(connection, names)
    written = await log.write(
        [Publish(subjects.subject_of(report(delivery=n)), report(delivery=n), f"{n}") for n in range(30)]
    )
    stored = sum(len(result.sequences) for result in written)
    assert {type(result.error) for result in written} == {type(None), StreamFull}
    assert issubclass(StreamFull, LogUnavailable)
    assert stored > 1
    await NatsStreamPurge(connection, names).purge("report.>", upto=stored)
    assert await log.publish(subjects.subject_of(report()), report(), message_id="later") == stored + 1


async def test_the_public_side_follows_the_prefixes(connection: Connection) -> None:
    unique = fresh_names().root
    names = Names(unique, f"{unique}-in.a.b", f"{unique}-out", f"{unique}-mq")
    await provision(connection, names, BRIDGED)

    main = (Stream.INPUTS, Stream.REQUESTS, Stream.LOG, Stream.MQ)
    inputs, requests, log, mq = [await _stream(connection, names.stream(stream)) for stream in main]

    assert inputs["subjects"] == [
        f"{unique}-in.a.b.>",
        f"{unique}-out.cancel.>",
        f"{unique}.outside.*.trigger.>",
        f"{unique}.outside.*.cancel.>",
    ]
    assert requests["subjects"] == [f"{unique}.0.{kind}.>" for kind in ("trigger", "cancel", "enqueue", "change")]
    assert log["republish"] == {"src": f"{unique}.0.cron.>", "dest": f"{unique}-out.>"}
    assert mq["subjects"] == [
        f"{unique}-mq.scheduled.>",
        f"{unique}-mq.team.>",
        f"{unique}-mq.scheduler.complete.>",
        f"{unique}-mq.scheduler.cancel.>",
    ]


async def test_without_the_bridge_its_stream_is_absent(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())

    with pytest.raises(JetStreamError):
        await _stream(connection, names.stream(Stream.MQ))


async def test_the_key_is_made_once_by_however_many(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    first = await NatsProjections(connection, names).get(Bucket.INSTALLATION, INSTALLATION_KEY)
    await asyncio.gather(*(provision(connection, names, Settings()) for _ in range(3)))

    assert first is not None
    assert len(bytes.fromhex(first[0].decode())) == 32
    assert await NatsProjections(connection, names).get(Bucket.INSTALLATION, INSTALLATION_KEY) == first


async def test_differences_are_updated_and_reported(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings(), durables=[REPORTS])
    wider = DurableSpec("reports", Stream.REPORTS, ("report.*.*.failed.>", "report.*.*.completed.>"), ack_wait=5)

    changes = await provision(connection, names, Settings(), durables=[wider])

    old, new = [names.to_wire("report.>")], [names.to_wire(f"report.*.*.{end}.>") for end in ("failed", "completed")]
    fields = {"ack_wait": (30_000_000_000, 5_000_000_000), "filter_subjects": (old, new)}
    [change] = [change for change in changes if change.action != "unchanged"]
    assert change == Change("consumer", f"{names.stream(Stream.REPORTS)}/reports", "updated", fields)
    assert change.line() == (
        f"consumer {names.stream(Stream.REPORTS)}/reports: updated "
        f"(ack_wait 30000000000 → 5000000000, filter_subjects {old} → {new})"
    )
    assert {change.action for change in await provision(connection, names, Settings(), durables=[wider])} == {
        "unchanged"
    }


async def test_lossy_limits_are_removed_and_operator_limits_kept(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    log = names.stream(Stream.LOG)
    config = await _stream(connection, log)
    mine = {"description": "mine", "compression": "none", "max_msgs": 1_000}
    await connection.manage(f"STREAM.UPDATE.{log}", json.dumps(config | mine).encode())

    changes = await provision(connection, names, Settings())

    assert [change for change in changes if change.action != "unchanged"] == [
        Change("stream", log, "updated", {"compression": ("none", "s2"), "max_msgs": (1_000, -1)})
    ]
    config = await _stream(connection, log)
    assert (config["description"], config["compression"], config["max_msgs"]) == ("mine", "s2", -1)


@pytest.mark.parametrize(
    ("cursors", "first"),
    [
        ({}, 1),
        ({subjects.cursor(Stream.REPORTS): b"2"}, 3),
        ({subjects.cursor(Stream.REPORTS): b"2", subjects.cursor(Stream.REPORTS, "reports"): b"3"}, 4),
        ({subjects.cursor(Stream.LOG): b"2", subjects.cursor(Stream.REPORTS, "others"): b"3"}, 1),
    ],
    ids=["no cursor", "the stream's", "its own", "those of others"],
)
async def test_a_new_durable_begins_behind_its_cursor(
    connection: Connection, names: Names, cursors: dict[str, bytes], first: int
) -> None:
    await provision(connection, names, Settings())
    for key, value in cursors.items():
        await NatsProjections(connection, names).put(Bucket.CURSORS, key, value)
    log = NatsEventLog(connection, names)
    for n in range(5):
        await log.publish(subjects.subject_of(report(delivery=n)), report(delivery=n), message_id=str(n))

    await provision(connection, names, Settings(), durables=[REPORTS])

    durable = NatsDurable(connection, names, Stream.REPORTS, "reports")
    assert (await durable.take(1, wait=10))[0].sequence == first
    await durable.close()
    assert {change.action for change in await provision(connection, names, Settings(), durables=[REPORTS])} == {
        "unchanged"
    }


async def test_completions_stay_for_the_bridge_alone(connection: Connection, names: Names) -> None:
    spec = DurableSpec("mq-bridge-completions", Stream.MQ, ("mq.scheduler.complete.>",))
    await provision(connection, names, BRIDGED)
    log, mq = NatsEventLog(connection, names), names.stream(Stream.MQ)
    await log.publish("mq.scheduler.complete.a_job.e1", Completion(status="completed"), message_id="a")
    await provision(connection, names, BRIDGED, durables=[spec])

    durable = NatsDurable(connection, names, Stream.MQ, spec.name)
    (found,) = await durable.take(1, wait=10)
    assert found.subject == "mq.scheduler.complete.a_job.e1"
    assert (await log.last(found.subject)) is not None
    await found.ack()
    await durable.close()

    thief = {"stream_name": mq, "config": {"durable_name": "thief", "ack_policy": "explicit"}, "action": "create"}
    with pytest.raises(JetStreamError):
        await connection.manage(f"CONSUMER.CREATE.{mq}.thief", json.dumps(thief).encode())


async def test_two_installations_share_a_server(connection: Connection) -> None:
    logs = []
    for names in (fresh_names(), fresh_names()):
        await provision(connection, names, Settings())
        logs.append(NatsEventLog(connection, names))

    for log in logs:
        assert await log.publish(subjects.subject_of(report()), report(), message_id="1") == 1


async def test_subjects_of_a_foreign_stream_are_refused(connection: Connection, names: Names) -> None:
    name = f"ORDERS-{names.root}"
    theirs = {"name": name, "subjects": [f"orders.{names.root}", f"{names.trigger_prefix}.>"]}
    await connection.manage(f"STREAM.CREATE.{name}", json.dumps(theirs).encode())

    with pytest.raises(SubjectsOverlap) as caught:
        await provision(connection, names, Settings())

    error = caught.value
    assert (error.code, error.other, error.subject) == ("subjects-overlap", name, f"{names.trigger_prefix}.>")
    assert error.stream == names.stream(Stream.INPUTS)


async def test_a_stream_that_cannot_become_what_is_needed(connection: Connection, names: Names) -> None:
    log = names.stream(Stream.LOG)
    metadata = {LAYOUT_KEY: str(LAYOUT)}
    config = {"name": log, "subjects": [names.to_wire("execution.>")], "storage": "memory", "metadata": metadata}
    await connection.manage(f"STREAM.CREATE.{log}", json.dumps(config).encode())

    with pytest.raises(StreamUnchangeable) as caught:
        await provision(connection, names, Settings())

    error = caught.value
    assert (error.code, error.stream, error.fields) == ("stream-unchangeable", log, {"storage": ("memory", "file")})


async def test_plan_refuses_what_the_server_cannot_unset(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    reports = names.stream(Stream.REPORTS)
    config = (await connection.manage(f"STREAM.INFO.{reports}"))["config"]
    await connection.manage(f"STREAM.UPDATE.{reports}", json.dumps({**config, "deny_delete": True}).encode())
    lower = Settings(archive=Archive(max_input_bytes=2**20, max_outside_messages=10))

    for mode in (Mode.PLAN, Mode.KEEP_MESSAGES):
        with pytest.raises(StreamUnchangeable) as caught:
            await provision(connection, names, lower, mode=mode)
        assert (caught.value.stream, caught.value.fields) == (reports, {"deny_delete": (True, False)})
    unchanged = (await connection.manage(f"STREAM.INFO.{names.stream(Stream.REQUESTS)}"))["config"]
    assert unchanged["max_bytes"] == Archive().max_input_bytes


async def test_more_replicas_than_there_are_servers(connection: Connection, names: Names) -> None:
    with pytest.raises(StreamRejected) as caught:
        await provision(connection, names, Settings(replicas=3))

    assert (caught.value.code, caught.value.stream) == ("stream-rejected", names.stream(Stream.INPUTS))
    assert "replicas" in caught.value.reason


async def test_a_server_that_is_too_old(connection: Connection, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "connected_server_version", property(lambda _: ServerVersion("2.11.10")))

    with pytest.raises(ServerTooOld) as caught:
        await provision(connection, names, Settings())

    error = caught.value
    assert (error.code, error.version, error.needed) == ("nats-server-too-old", "2.11.10", str(OLDEST_SERVER))


async def test_a_server_without_jetstream(names: Names, tmp_path: Path) -> None:
    with _server(tmp_path, "") as url:
        async with connect(url) as connection:
            with pytest.raises(ProvisionError) as caught:
                await provision(connection, names, Settings())
            with pytest.raises(LogUnavailable) as found:
                await find_key(connection, names)

    assert caught.value.code == "jetstream-not-enabled"
    assert str(caught.value) == str(found.value)


async def test_an_account_without_jetstream(names: Names, tmp_path: Path) -> None:
    accounts = (
        f"jetstream {{store_dir: {json.dumps(str(tmp_path))}}}\naccounts {{A {{users: [{{user: a, password: b}}]}}}}"
    )
    with _server(tmp_path, accounts) as url:
        async with connect(url, user="a", password="b") as connection:
            with pytest.raises(ProvisionError) as caught:
                await provision(connection, names, Settings())

    assert caught.value.code == "jetstream-not-enabled"


@pytest.mark.parametrize("is_first", [True, False], ids=["at once", "in between"])
async def test_a_server_that_falls_silent(
    *, is_first: bool, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedServer(tmp_path, port=ANY_PORT).start() as server:
        async with connect(server.url) as connected:
            connection = Connection(connected.client, timeout=0.3)
            check = provisioning._check_jetstream

            async def check_and_stop(connection: Connection) -> None:
                await check(connection)
                _stop(server.pid)

            if is_first:
                _stop(server.pid)
            else:
                monkeypatch.setattr(provisioning, "_check_jetstream", check_and_stop)
            try:
                with pytest.raises(ProvisionError) as caught:
                    await provision(connection, names, Settings())
            finally:
                os.kill(server.pid, signal.SIGCONT)

    assert caught.value.code == "jetstream-unavailable"
    assert isinstance(caught.value.__cause__, LogUnavailable)
    assert re.search(r"\$JS\.API\.[A-Z.]*INFO", str(caught.value))


def _stop(pid: int) -> None:
    """Stop a child process, and return when it has stopped: until then, any of its threads may still answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


async def _stream(connection: Connection, name: str) -> dict[str, Any]:
    config: dict[str, Any] = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    return config


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"no process listens on port {port}"
            time.sleep(0.05)
        else:
            return


@contextmanager
def _server(directory: Path, configuration: str) -> Iterator[str]:
    """Run a server with a configuration, and yield its URL once it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = directory / "nats.conf"
    file.write_text(f"listen: 127.0.0.1:{port}\n{configuration}\n")
    process = subprocess.Popen([installed_binary(), "-c", file], stderr=subprocess.DEVNULL)
    try:
        _wait_until_listening(port)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def _compression(connection: Connection, names: Names, stream: Stream) -> str:
    compression: str = (await _stream(connection, names.stream(stream)))["compression"]
    return compression
