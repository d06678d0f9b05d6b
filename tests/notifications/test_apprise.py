"""Apprise to a real receiver: what it gets, and that no secret leaves its process."""

import asyncio
import json
import logging
import sys

import pytest

from tests.notifications.given import HOSTILE, channel, notification, refusal
from tests.worker.builtin.http_given import Server, answer
from tocsin.domain.notification import Kind
from tocsin.ports import NotificationChannel
from tocsin.settings import SettingsError


def apprise(server: Server, scheme: str = "json", path: str = "/T0KEN", timeout: float = 30) -> NotificationChannel:
    url = f"{scheme}://user:hunter2@127.0.0.1:{server.port}{path}"
    return channel(type="apprise", url=url, timeout=timeout)


def content_of(request: bytes) -> dict[str, str]:
    content = json.loads(request.partition(b"\r\n\r\n")[2])
    assert isinstance(content, dict)
    return content


async def test_notification_is_sent(server: Server) -> None:
    await apprise(server).send(notification())
    [request] = server.requests
    assert request.startswith(b"POST /T0KEN ")
    content = content_of(request)
    assert (content["title"], content["type"]) == ("orders.nightly failed", "failure")
    assert "Reason: ValueError: no rows" in content["message"]
    assert content["message"].endswith("https://tocsin.example.com/executions/e1?a=1&b=2")


@pytest.mark.parametrize(("kind", "type_"), [(Kind.RECOVERED, "success"), (Kind.LATE, "warning")])
async def test_kind_decides_on_the_type(server: Server, kind: Kind, type_: str) -> None:
    await apprise(server).send(notification(kind=kind))
    assert content_of(server.requests[0])["type"] == type_


async def test_text_of_jobs_mentions_no_person(server: Server) -> None:
    await apprise(server).send(notification(job=HOSTILE, reason=HOSTILE, why=HOSTILE))
    content = content_of(server.requests[0])
    for text in (content["title"], content["message"]):
        assert not [part for part in ("<", "@", "](", "\x1b", "\u202e") if part in text]


@pytest.mark.parametrize(
    ("status", "is_retryable"), [(503, True), (429, True), (404, False), (401, False), (307, False)]
)
async def test_status_decides_on_another_try(server: Server, status: int, is_retryable: object) -> None:
    server.response = answer(status=status, Location=server.url)
    refused = await refusal(apprise(server))
    assert (refused.retryable, len(server.requests)) == (is_retryable, 1)
    assert str(refused) == f"the service of the channel ops answered {status} to Apprise"


async def test_absent_service_is_retried() -> None:
    server = Server()
    async with server.running():
        pass
    refused = await refusal(apprise(server))
    assert refused.retryable
    assert "hunter2" not in str(refused)


async def test_timeout_includes_the_start_of_the_process(server: Server) -> None:
    refused = await refusal(apprise(server, timeout=0.01))
    assert refused.retryable
    assert "within 0.01 s" in str(refused)


async def test_process_ends_when_sending_ends(server: Server) -> None:
    async def stay_silent(_: asyncio.StreamWriter) -> None:
        pass

    server.response = stay_silent
    sending = asyncio.ensure_future(apprise(server, path="/T0KEN?rto=600", timeout=50).send(notification()))
    await server.has_request.wait()
    sending.cancel()
    await server.is_gone.wait()
    with pytest.raises(asyncio.CancelledError):
        await sending


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
async def test_endless_answer_ends_the_process(server: Server) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Text\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
            await writer.drain()

    server.response = flood
    refused = await refusal(apprise(server, path="/T0KEN?rto=600", timeout=50))
    assert refused.retryable
    assert "within" not in str(refused)


async def test_no_line_has_the_url(
    server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    server.response = answer(status=500)
    await refusal(apprise(server))
    written = caplog.text + "".join(capfd.readouterr())
    assert not [secret for secret in ("hunter2", "T0KEN") if secret in written]


@pytest.mark.parametrize("url", ["nonsense://hunter2", "slack://hunter2", "json://a,json://b"])
def test_wrong_url_is_named_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        channel(type="apprise", url=url)
    [problem] = raised.value.problems
    assert (problem.field, problem.value) == ("notifications.channels.ops.url", None)
    assert "hunter2" not in str(raised.value)
