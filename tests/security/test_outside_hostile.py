"""Hostile messages of a program outside: each is decided on, and stops nothing."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.security.installations import PASSWORD, connected, installed
from tests.security.server import Server
from tests.security.test_outside_accounts import audited
from tests.security.test_outside_requests import deciding
from tests.system.running import Running
from tocsin.domain.events import CronAnswer, PoisonMessage, Requested

USER: Final = "public-shop"
IDS: Final = (
    *(b"\xff\xfe", b"a\x01b", b"  ", b"", b"a.b.*.>", b"api.order", b"seq-1", b"x" * 300, "\N{SNOWMAN}".encode()),
    *(b"tocsin.0.ledger.j.due", b"%2E", b"a\r\nNats-Msg-Id: b", b"a\r\nNats-Msg-Id:"),
)
"""Values of `Nats-Msg-Id`; some add further headers."""
BODIES: Final = (
    *(b"", b"\xff", b"[]", b"null", b"NaN", b"{", b"[" * 100_000, b'{"a":' * 20_000, b'{"input": {"n": 1e999}}'),
    *(b'{"idempotency_key": "\\ud800"}', b'{"reason": "\\udfff"}', b'{"input": {"\\ud800": 1}}', b'{"by": 7}'),
    *(b'{"idempotency_key": ""}', b'{"priority": 1e9}', b'{"v": 2}', b'{"type": "cancel"}', b'{"args": "x"}'),
    *(b'{"scheduled_time": "2026-01-01T00:00:00Z", "backfill": "b"}', b'{"input": {"' + b"k" * 200_000 + b'": 1}}'),
    *(b'{"idempotency_key": "a\\u0000b"}', b'{"reason": "' + b"r" * 200_000 + b'"}', b"{}" + b" " * 200_000),
)
JOBS: Final = (
    *(b"*", b">", b"_", b"-", b"$JS", b"j.", b"\xff", b"J" * 300, b"j.*", b"a" * 3_000, b"j j"),
    *(b"j\x0bj", b"j\x0cj", b"j\x0c", b"j\x00", b"j\x851", b"\xe2\x80\xa8"),
)
MEANT: Final = 5
"""Triggers that are meant, after all others."""


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


def published(subject: bytes, body: bytes, message_id: bytes | None = None) -> bytes:
    """Return a message as the protocol has it."""
    if message_id is None:
        return b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body)
    headers = b"NATS/1.0\r\nNats-Msg-Id: " + message_id + b"\r\n\r\n"
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(headers), len(headers) + len(body), headers, body)


async def send(at: Server, message: bytes) -> bytes:
    """Send a message over a connection of its own; return the server's last line, empty if it closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    login = {"user": USER, "pass": PASSWORD, "headers": True, "verbose": False, "pedantic": False}
    writer.write(b"CONNECT %s\r\n%sPING\r\n" % (json.dumps(login).encode(), message))
    while line := await reader.readline():
        if line.startswith((b"PONG", b"-ERR")):
            break
    writer.close()
    return line


async def test_every_hostile_message_is_decided(
    secured: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with connected(secured, tmp_path, "operator") as it, deciding(secured, tmp_path):
        tocsin = Running(it)
        await tocsin.apply({"name": "j", "function": "f", "overlap_policy": "enqueue"})
        for message_id in IDS:
            await send(secured, published(b"cron.trigger.j", b"{}", message_id))
            await send(secured, published(b"cron.cancel.j.0193a5b0-0000-7000-8000-000000000001", b"", message_id))
        for body in BODIES:
            await send(secured, published(b"cron.trigger.j", body))
            await send(secured, published(b"cron.cancel.j.0193a5b0-0000-7000-8000-000000000001", body))
        for job in JOBS:
            for kind in (b"trigger", b"cancel"):
                await send(secured, published(b"cron.%s.%s" % (kind, job), b"{}"))
            await send(secured, published(b"cron.cancel.%s.%s" % (job, job), b"{}"))
        await tocsin.apply({"name": "meant", "function": "f"})
        for number in range(MEANT):
            await send(secured, published(b"cron.trigger.meant", b"{}", b"meant-%d" % number))
        await tocsin.ended("meant", Requested, MEANT)

        async def is_over() -> bool:
            return not (await tocsin.not_taken()).total()

        await tocsin.until(is_over)
        refused = await tocsin.stored("dead-letter.>", PoisonMessage, 1)
        answers = await tocsin.stored("cron.answer.>", CronAnswer, len(refused))
        assert {letter.message.id for letter in refused} == {a.message.data.dead_letter for a in answers} - {None}
    assert "handler failed" not in capfd.readouterr().out
    code, remarks = await audited(secured, tmp_path)
    assert (code, len(remarks)) == (0, 1)
    assert "INPUTS, where the program shop may publish, cannot be read" in remarks[0]
