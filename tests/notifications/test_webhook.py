"""Webhooks to a real server: what is sent, and the meaning of answers."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from standardwebhooks.webhooks import Webhook as Verifier

from tests.notifications.given import HOSTILE, ID, SECRET, channel, notification, refusal
from tests.worker.builtin.http_given import Server, answer
from tocsin.ports import NotificationChannel
from tocsin.settings import SettingsError


def webhook(server: Server, **settings: Any) -> NotificationChannel:  # noqa: ANN401 - as in the file
    return channel(**{"type": "webhook", "url": f"{server.url}/hooks/T0KEN?a=1", **settings})


def parts_of(request: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, body


async def test_notification_is_sent_as_json(server: Server) -> None:
    await webhook(server).send(notification(others=3, other_jobs=("a", "b")))
    [request] = server.requests
    first, headers, body = parts_of(request)
    assert first == "POST /hooks/T0KEN?a=1 HTTP/1.1"
    assert (headers["content-type"], headers["user-agent"]) == ("application/json", "tocsin/1.2.3")
    assert json.loads(body) == {
        "id": ID,
        "kind": "failed",
        "job": "orders.nightly",
        "at": "2026-11-26T03:00:00Z",
        "channel": "ops",
        "execution_id": "e1",
        "title": "orders.nightly failed (and 3 more)",
        "reason": "ValueError: no rows",
        "why": "attempt 1 failed\nattempt 2 failed",
        "url": "https://tocsin.example.com/executions/e1?a=1&b=2",
        "others": 3,
        "other_jobs": ["a", "b"],
    }


async def test_signature_satisfies_the_standard(server: Server) -> None:
    await webhook(server, secret=SECRET).send(notification(reason="é\u2028\ud800"))
    _, headers, body = parts_of(server.requests[0])
    assert Verifier(SECRET).verify(body, headers)["id"] == headers["webhook-id"] == ID


async def test_each_try_has_the_same_id(server: Server) -> None:
    receiver = webhook(server, secret=SECRET)
    for _ in range(2):
        await receiver.send(notification())
    assert {parts_of(request)[1]["webhook-id"] for request in server.requests} == {ID}


async def test_without_secret_there_is_no_signature(server: Server) -> None:
    await webhook(server).send(notification())
    _, headers, _ = parts_of(server.requests[0])
    assert headers["webhook-id"] == ID
    assert "webhook-signature" not in headers


async def test_headers_of_the_settings_are_sent(server: Server) -> None:
    await webhook(server, headers={"Authorization": "Bearer hunter2", "user-agent": "ours"}).send(notification())
    _, headers, _ = parts_of(server.requests[0])
    assert server.requests[0].lower().count(b"user-agent:") == 1
    assert (headers["authorization"], headers["user-agent"]) == ("Bearer hunter2", "ours")


async def test_text_of_jobs_stays_inside_the_json(server: Server) -> None:
    await webhook(server).send(notification(reason=HOSTILE))
    _, headers, body = parts_of(server.requests[0])
    assert "bcc" not in headers
    assert json.loads(body)["reason"] == HOSTILE


async def test_request_uses_the_authority_of_the_settings(authority: trustme.CA, ca_file: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with Server().running(context) as server:
        url = f"https://127.0.0.1:{server.port}/"
        await webhook(server, url=url, ca_file=str(ca_file)).send(notification())
        refused = await refusal(webhook(server, url=url))
    assert len(server.requests) == 1
    assert refused.retryable
    assert "certificate" in str(refused)


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_any_success_is_an_acceptance(server: Server, status: int) -> None:
    server.response = answer(status=status)
    await webhook(server).send(notification())


@pytest.mark.parametrize(
    ("status", "is_retryable"),
    [(408, True), (425, True), (429, True), (500, True), (503, True), (400, False), (401, False), (404, False)],
)
async def test_status_decides_on_another_try(server: Server, status: int, is_retryable: object) -> None:
    server.response = answer(status=status)
    refused = await refusal(webhook(server))
    assert (refused.retryable, refused.code) == (is_retryable, "channel-refused")
    assert str(refused) == f"{server.url} answered {status}"


@pytest.mark.parametrize(("status", "wait"), [(429, 7.0), (503, 7.0), (400, None)])
async def test_receiver_names_the_time_to_wait(server: Server, status: int, wait: float | None) -> None:
    server.response = answer(status=status, Retry_After="7")
    assert (await refusal(webhook(server))).retry_after == wait


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(server: Server, status: int) -> None:
    """Not even to an internal address, which the receiver alone would choose."""
    async with Server().running() as internal:
        server.response = answer(status=status, Location=f"{internal.url}/latest/meta-data")
        refused = await refusal(webhook(server))
    assert not refused.retryable
    assert "redirects are not followed" in str(refused)
    assert (len(server.requests), internal.requests) == (1, [])


async def test_gone_receiver_is_named(server: Server) -> None:
    server.response = answer(status=410)
    refused = await refusal(webhook(server))
    assert not refused.retryable
    assert "remove the channel" in str(refused)


@pytest.mark.parametrize("status", [200, 500])
async def test_body_of_an_answer_is_not_read(server: Server, status: int) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Text\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await writer.drain()

    server.response = flood
    if status == 200:
        await webhook(server).send(notification())
    else:
        assert (await refusal(webhook(server))).retryable
    await server.is_gone.wait()


@pytest.mark.parametrize("part", [b"A: " + b"x" * 60_000 + b"\r\n", b"x" * 60_000])
async def test_endless_headers_are_refused(server: Server, part: bytes) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not writer.is_closing():
            writer.write(part)
            await writer.drain()

    server.response = flood
    refused = await refusal(webhook(server, timeout=50))
    assert refused.retryable
    assert "cannot be reached" in str(refused)


async def test_endless_interim_answers_end_at_the_timeout(server: Server) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
            await writer.drain()

    server.response = flood
    refused = await refusal(webhook(server, timeout=0.2))
    assert refused.retryable
    assert "within 0.2 s" in str(refused)


async def test_silent_receiver_is_left_after_the_timeout(server: Server) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"H")
            await asyncio.sleep(0.01)

    server.response = drip
    refused = await refusal(webhook(server, timeout=0.2))
    assert refused.retryable
    assert "within 0.2 s" in str(refused)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200", "closed the connection"),
        (b"nonsense\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000, "not valid HTTP"),
    ],
)
async def test_answer_that_is_no_http_is_retried(server: Server, response: bytes, reason: str) -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        writer.close()

    server.response = say
    refused = await refusal(webhook(server))
    assert refused.retryable
    assert reason in str(refused)


@pytest.mark.parametrize("form", [b"%s\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: %s\x00\r\n\r\n"])
async def test_error_repeats_no_echo_of_the_request(server: Server, form: bytes) -> None:
    async def echo(writer: asyncio.StreamWriter) -> None:
        writer.write(form % b"POST /T0KEN HTTP/1.1")
        writer.close()

    server.response = echo
    refused = await refusal(webhook(server, url=f"{server.url}/T0KEN"))
    assert "the answer is not valid HTTP" in str(refused)
    assert "T0KEN" not in str(refused)


async def test_name_that_no_host_has_is_refused(server: Server) -> None:
    refused = await refusal(webhook(server, url=f"http://{'a' * 64}.test/"))
    assert "cannot be reached" in str(refused)


async def test_error_shows_no_secret_of_the_url(server: Server) -> None:
    url = f"http://user:hunter2@127.0.0.1:{server.port}/hooks/T0KEN"
    server.response = answer(status=404)
    texts = [str(await refusal(webhook(server, url=url)))]
    texts += [str(await refusal(webhook(server, url="http://user:hunter2@127.0.0.1:1/hooks/T0KEN")))]
    assert not [text for text in texts if "hunter2" in text or "T0KEN" in text]


def test_unreadable_authority_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(SettingsError) as raised:
        channel(type="webhook", url="https://example.com/", ca_file=str(file))
    [problem] = raised.value.problems
    assert (problem.field, problem.code) == ("notifications.channels.ops.ca_file", "file-unreadable")
