"""E-mails to a real mail server: what it receives, and the meaning of its answers."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tests.notifications.given import AT, HOSTILE, ID, channel, notification, refusal
from tests.notifications.mail_server import Mailbox
from tests.ports import free_port
from tocsin.adapters.notifications.mail import message_of
from tocsin.ports import NotificationChannel
from tocsin.settings.channels import EmailChannel
from tocsin.testing import settle

ADDRESS = r"[a-z0-9!#$%&'*+/=?^_`{|}~-]{1,9}(\.[a-z+=]{1,9}){0,3}@[a-z0-9]{1,9}(\.[a-z0-9]{1,9}){0,3}"


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with Mailbox().running() as running:
        yield running


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def mail(mailbox: Mailbox, **settings: Any) -> NotificationChannel:  # noqa: ANN401 - as in the file
    usual = {"host": "127.0.0.1", "port": mailbox.port, "tls": "none", "sender": "tocsin@example.com"}
    return channel(**{"type": "email", "recipients": ["a@example.com", "b@example.com"], **usual, **settings})


def settings(sender: str, *recipients: str) -> EmailChannel:
    return EmailChannel(type="email", host="127.0.0.1", sender=sender, recipients=recipients)


def text_of(message: EmailMessage) -> str:
    return str(message.get_content()).replace("\r\n", "\n")


async def test_notification_is_a_message(mailbox: Mailbox) -> None:
    await mail(mailbox).send(notification(reason="Überlauf ☃"))
    [message], [envelope] = mailbox.messages, mailbox.envelopes
    assert envelope.rcpt_tos == ["a@example.com", "b@example.com"]
    assert message["Subject"] == "orders.nightly failed"
    assert message["From"] == "tocsin@example.com"
    assert message["To"] == "a@example.com, b@example.com"
    assert message["Message-ID"] == f"<{ID}@example.com>"
    assert message["Date"].datetime == AT
    assert message["Auto-Submitted"] == "auto-generated"
    text = text_of(message)
    assert "Reason: Überlauf ☃\n" in text
    assert "\nattempt 1 failed\nattempt 2 failed\n" in text
    assert text.endswith("https://tocsin.example.com/executions/e1?a=1&b=2\n")


async def test_each_try_is_the_same_message(mailbox: Mailbox) -> None:
    for _ in range(2):
        await mail(mailbox).send(notification())
    first, second = (envelope.original_content for envelope in mailbox.envelopes)
    assert first == second


async def test_text_of_jobs_adds_no_header(mailbox: Mailbox) -> None:
    await mail(mailbox).send(notification(job=HOSTILE, reason=HOSTILE, why=HOSTILE, other_jobs=(HOSTILE,), others=1))
    [message], [envelope] = mailbox.messages, mailbox.envelopes
    assert message["Bcc"] is None
    assert len(envelope.rcpt_tos) == 2
    assert not any(char in message["Subject"] + text_of(message) for char in "\x1b\u202e\r")


@pytest.mark.parametrize(
    "word", ["=?utf-8?q?a=0d=0aBcc:_all@example.com?=", "x =?utf-8?b?DQoNCmJvZHk=?= y", "=?a?q?==??="]
)
async def test_encoded_words_add_no_header(mailbox: Mailbox, word: str) -> None:
    """Python decodes an encoded word (RFC 2047) in a header that it is given."""
    await mail(mailbox, subject="[ops] {{ title }}: {{ reason }}").send(notification(reason=word))
    await mail(mailbox).send(notification(job=word))
    for message in mailbox.messages:
        assert message["Bcc"] is None
        assert message["X-Tocsin-Kind"] == "failed"
        assert word.replace("=?", "= ?") in message["Subject"]


@given(st.text(), st.text())
def test_any_text_makes_a_message(job: str, reason: str) -> None:
    message = message_of(notification(job=job, reason=reason), settings("a@example.com", "b@example.com"))
    head = message.as_bytes().partition(b"\r\n\r\n")[0]
    names = [line.partition(b":")[0] for line in head.split(b"\r\n") if line[:1] not in {b" ", b"\t"}]
    assert names[:4] == [b"From", b"To", b"Subject", b"Date"]
    assert len(names) == len(set(names)) == 10


@given(st.from_regex(ADDRESS, fullmatch=True))
def test_any_address_makes_a_message(address: str) -> None:
    message = message_of(notification(), settings(address, address, address))
    assert message.as_bytes()
    assert [each.addr_spec for each in message["To"].addresses] == [address, address]


@pytest.mark.parametrize("kind", ["starttls", "tls"])
async def test_message_is_encrypted(kind: str, tls: ssl.SSLContext, ca_file: Path) -> None:
    async with Mailbox().running(tls=tls, is_tls_at_start=kind == "tls") as mailbox:
        encrypted = mail(mailbox, tls=kind, ca_file=str(ca_file), user="tocsin", password="hunter2")
        await encrypted.send(notification())
    assert mailbox.was_encrypted == [True]
    assert mailbox.logins == [(b"tocsin", b"hunter2")]


@pytest.mark.parametrize("kind", ["starttls", "tls"])
async def test_unknown_authority_gets_no_message(kind: str, tls: ssl.SSLContext) -> None:
    async with Mailbox().running(tls=tls, is_tls_at_start=kind == "tls") as mailbox:
        refused = await refusal(mail(mailbox, tls=kind, user="tocsin", password="hunter2"))
    assert refused.retryable
    assert "certificate" in str(refused)
    assert (mailbox.messages, mailbox.logins) == ([], [])


async def test_server_without_starttls_gets_no_message(mailbox: Mailbox) -> None:
    refused = await refusal(mail(mailbox, tls="starttls", user="tocsin", password="hunter2"))
    assert not refused.retryable
    assert "STARTTLS" in str(refused)
    assert (mailbox.messages, mailbox.logins) == ([], [])


async def test_wrong_password_is_not_repeated(mailbox: Mailbox) -> None:
    refused = await refusal(mail(mailbox, user="tocsin", password="hunter3"))
    assert not refused.retryable
    assert "535" in str(refused)
    assert "hunter3" not in str(refused)


@pytest.mark.parametrize(("answer", "is_retryable"), [("451 later", True), ("554 never", False)])
async def test_answer_decides_on_another_try(mailbox: Mailbox, answer: str, is_retryable: object) -> None:
    mailbox.answer = answer
    refused = await refusal(mail(mailbox))
    assert refused.retryable is is_retryable
    assert str(refused) == f"127.0.0.1:{mailbox.port} answered {answer[:3]}: {answer[4:]}"


@pytest.mark.parametrize("others", [[], ["a@example.com"]])
@pytest.mark.parametrize(("answer", "is_retryable"), [("450 later", True), ("550 unknown", False)])
async def test_refused_recipient_is_named(
    mailbox: Mailbox, answer: str, is_retryable: object, others: list[str]
) -> None:
    mailbox.refused = {"b@example.com": answer}
    refused = await refusal(mail(mailbox, recipients=[*others, "b@example.com"]))
    assert refused.retryable is is_retryable
    assert "b@example.com with " + answer.replace(" ", ": ") in str(refused)
    assert [envelope.rcpt_tos for envelope in mailbox.envelopes] == ([others] if others else [])


async def test_answer_is_safe_and_short(mailbox: Mailbox) -> None:
    mailbox.answer = "554 \x1b[2J" + "x" * 400
    text = str(await refusal(mail(mailbox)))
    assert "\x1b" not in text
    assert len(text) < 300


async def test_absent_server_is_retried() -> None:
    mailbox = Mailbox()
    mailbox.port = free_port()
    assert (await refusal(mail(mailbox))).retryable


async def test_endless_greeting_is_refused() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while not writer.is_closing():
                writer.write(b"220-more\r\n" * 1_000)
                await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    mailbox = Mailbox()
    mailbox.port = server.sockets[0].getsockname()[1]
    async with server:
        refused = await refusal(mail(mailbox, timeout=50))
        await settle()
    assert "too long" in str(refused)


@pytest.mark.parametrize("greeting", [b"", b"220 a\r\n", b"nonsense\r\n", b"220-" + b"x" * 100_000])
async def test_silent_server_is_left_after_the_timeout(greeting: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    mailbox = Mailbox()
    mailbox.port = server.sockets[0].getsockname()[1]
    async with server:
        assert (await refusal(mail(mailbox, timeout=0.3))).retryable
        await settle()
