"""Signs of life on a real server: who sends them, and what ends them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from tests.system.running import running
from tocsin.adapters.http import heartbeat
from tocsin.adapters.http.heartbeat import HttpPing, Refused
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.engine.ticker_watch import Heartbeat, Ping
from tocsin.ports import Clock

EVERY_S = 1.0
"""Seconds between two signs of life."""


@asynccontextmanager
async def monitor(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A monitor that gives each request the same answer."""
    requests: list[bytes] = []

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/ping/secret", requests


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


async def test_leading_ticker_sends_signs_of_life(nats_url: str, tmp_path: Path) -> None:
    async with monitor(OK) as (url, requests), running(nats_url, tmp_path, heartbeat={"url": url}) as tocsin:

        async def is_heard() -> bool:
            return bool(requests)

        await tocsin.until(is_heard)
    [request] = requests
    assert request.startswith(b"GET /ping/secret HTTP/1.1\r\n")
    assert b"User-Agent: tocsin/" in request


async def test_signs_of_life_end_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor outside hears nothing after the ledger stops."""
    usual = Heartbeat.__init__

    def often(self: Heartbeat, ping: Ping, clock: Clock, *, every: float) -> None:
        del every  # the settings allow no interval below 10 seconds
        usual(self, ping, clock, every=EVERY_S)

    monkeypatch.setattr(Heartbeat, "__init__", often)
    with EmbeddedServer(tmp_path / "server", ANY_PORT).start() as server:
        async with (
            monitor(OK) as (url, requests),
            running(server.url, tmp_path, heartbeat={"url": url}) as tocsin,
        ):

            async def is_heard() -> bool:
                return len(requests) >= 2

            await tocsin.until(is_heard)
            server.stop(timeout_s=0.0)

            async def is_silent() -> bool:
                before = len(requests)
                await asyncio.sleep(4 * EVERY_S)
                return len(requests) == before

            await tocsin.until(is_silent)  # at the latest when the lease of the ticker ends


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_other_answers_are_no_success(answer: bytes) -> None:
    async with monitor(answer) as (url, requests):
        with pytest.raises(Refused, match="status"):
            await HttpPing(url, "1")()
        assert len(requests) == 1


async def test_endless_answer_is_not_read() -> None:
    async with monitor(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx") as (url, _):
        await HttpPing(url, "1")()


@pytest.mark.parametrize("part", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a"])
async def test_endless_head_of_an_answer_is_left(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            writer.write(part)
            while not writer.is_closing():
                writer.write(part if part.endswith(b"\n") else b"a")
                await writer.drain()
                await asyncio.sleep(0.05)

    monkeypatch.setattr(heartbeat, "TIMEOUT_S", 0.5)
    async with await asyncio.start_server(answered, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TimeoutError):
            await HttpPing(f"http://127.0.0.1:{port}/", "1")()
