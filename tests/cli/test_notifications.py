"""`tocsin notifications test`: one message to the real receiver."""

import asyncio
import json
import sys
from pathlib import Path

import nats
import pytest

from tests.cli.conftest import World
from tests.worker.builtin.http_given import Server, answer
from tocsin.domain.events import NotificationRaised
from tocsin.domain.notification import Kind


def config(folder: Path, url: str) -> str:
    path = folder / "tocsin.yaml"
    channels = {"incidents": {"type": "webhook", "url": url}, "events": {"type": "nats"}}
    path.write_text(json.dumps({"notifications": {"channels": channels}}), "utf-8")
    return str(path)


async def send(file: str, channel: str) -> tuple[int, str, str]:
    program = (sys.executable, "-m", "tocsin", "--config", file, "-o", "json", "notifications", "test", channel)
    process = await asyncio.create_subprocess_exec(
        *program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_test_reaches_the_receiver(tmp_path: Path) -> None:
    async with Server().running() as server:
        code, out, err = await send(config(tmp_path, server.url + "/T0KEN"), "incidents")
    assert code == 0, err
    sent = json.loads(server.requests[0].partition(b"\r\n\r\n")[2])
    assert (sent["job"], sent["kind"], sent["channel"]) == ("tocsin.test", "failed", "incidents")
    assert "This is a test" in sent["reason"]
    assert json.loads(out) == {"channel": "incidents", "id": sent["id"], "outcome": "accepted"}


async def test_refusal_is_the_answer_no(tmp_path: Path) -> None:
    async with Server().running() as server:
        server.response = answer(status=404)
        code, _, err = await send(config(tmp_path, server.url + "/T0KEN"), "incidents")
    error = json.loads(err)["error"]
    assert (code, error["error_code"], error["message"]) == (1, "channel-refused", f"{server.url} answered 404")


async def test_test_reaches_subscribers_on_nats(tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_NATS_URL", nats_url)
    client = await nats.connect(nats_url)
    alerts = await client.subscribe("cron.alert.>")
    code, out, err = await send(config(tmp_path, "https://example.com/"), "events")
    assert code == 0, err
    alert = await alerts.next_msg()
    await client.close()
    id_ = json.loads(out)["id"]
    assert json.loads(alert.data)["data"]["id"] == id_
    assert alert.headers is not None
    assert (alert.headers["ce-id"], alert.headers["ce-type"]) == (id_, "org.openjobspec.x.cron.alert")


def test_unknown_channel_is_named(tmp_path: Path, world: World) -> None:
    file = config(tmp_path, "https://example.com/")
    called = world.call("--config", file, "-o", "json", "notifications", "test", "incident")
    assert called.failure == (3, "channel-not-found")
    assert "'incidents'" in called.error["message"]


def test_list_is_read_in_pages(world: World) -> None:
    async def given() -> None:
        for number in range(3):
            fact = NotificationRaised(job="job", id=f"n{number}", channel="ops", kind=Kind.FAILED, at=world.clock.now())
            await world.log.append(fact, expect=0)

    asyncio.run(given())
    first = world.call("notifications", "list", "--limit", "2", "-o", "json")
    assert [row["id"] for row in first.json] == ["n2", "n1"]
    cursor = first.err.partition("--cursor ")[2].partition(",")[0]
    assert [row["id"] for row in world.call("notifications", "list", "--cursor", cursor, "-o", "json").json] == ["n0"]
    assert len(world.call("notifications", "list", "--all", "-o", "json").json) == 3
    assert world.call("notifications", "list", "--failed", "-o", "json").json == []
    assert world.call("notifications", "list", "--cursor", "x").code == 2
