"""Answers of a server that is not Tocsin's API, or that is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.system.running import DEADLINE
from tocsin import Client
from tocsin.adapters.http import api_client
from tocsin.client import InvalidArgument
from tocsin.ports import ApiUnavailable

SIZED = b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s"
CHUNK = b"100000\r\n" + b" " * 0x100000 + b"\r\n"


@asynccontextmanager
async def answering(answer: bytes, *, again: bytes = b"") -> AsyncIterator[Client]:
    """A client of a server that gives each request an answer, and then repeats a part until it is closed."""

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            while again:
                writer.write(again)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with asyncio.timeout(DEADLINE):
        server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
        async with server, Client(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            yield client


def sized(status: bytes, body: bytes) -> bytes:
    return SIZED % (status, len(body), body)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (sized(b"200 OK", b"<html>sign in</html>"), "200 without JSON"),
        (sized(b"200 OK", b"[" * 100_000), "200 without JSON"),
        (sized(b"200 OK", b"\xff\xfe\xff"), "200 without JSON"),
        (sized(b"502 Bad Gateway", b"<html>"), "502 without problem details"),
        (sized(b"404 Not Found", b'{"type": 5, "detail": "no"}'), "404 without problem details"),
        (sized(b"404 Not Found", b"[" * 100_000), "404 without problem details"),
        (b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "307"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "without sending complete message body"),
        (b"no HTTP at all\r\n\r\n", "no API answers"),
        (b"", r"without sending a response\. Start"),
    ],
)
async def test_foreign_answer_is_named(answer: bytes, reason: str) -> None:
    async with answering(answer) as client:
        with pytest.raises(ApiUnavailable, match=reason):
            await client.job("nightly")


async def test_endless_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "MAX_ANSWER_BYTES", 4_000_000)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with answering(head, again=CHUNK) as client:
        with pytest.raises(ApiUnavailable, match=r"more than 4,000,000 bytes"):
            await client.job("nightly")


@pytest.mark.parametrize(
    "url", ["", "tocsin.example.com", "ftp://a", "http://", "http://[::1", "http://a:99999", "http://a\n"]
)
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="http://127"):
        Client(url=url)
