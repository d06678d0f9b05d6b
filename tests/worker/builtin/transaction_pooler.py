"""A pooler of PostgreSQL that gives each transaction another connection.

Its clients see what they see with PgBouncer in the mode `transaction`, if other clients take turns with them.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_ENCRYPTION: Final = {80877103, 80877104}
"""Requests for TLS and GSSAPI: https://www.postgresql.org/docs/current/protocol-message-formats.html"""
_CONNECTIONS: Final = 2


class _Pooler:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it leaves."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            start = await _start(reader, writer)
            servers = [await asyncio.open_connection(self._host, self._port) for _ in range(_CONNECTIONS)]
            greeting = b""
            try:
                for server, sender in servers:
                    sender.write(start)
                    greeting = b"".join([part async for part in _until_ready(server)])
                writer.write(greeting)
                await self._take_turns(servers, reader, writer)
            finally:
                for _, sender in servers:
                    sender.close()
        writer.close()

    @staticmethod
    async def _take_turns(
        servers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        turn = 0
        while True:
            server, sender = servers[turn % _CONNECTIONS]
            kind = b""
            while kind not in {b"Q", b"S"}:  # a query, and the end of a series of other requests
                request = await _message(reader)
                kind = request[:1]
                sender.write(request)
            async for part in _until_ready(server):
                writer.write(part)
                await writer.drain()
            turn += part.endswith(b"I")  # outside of a transaction


async def _start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the first message of a client."""
    while True:
        size = await reader.readexactly(4)
        rest = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
        if struct.unpack("!I", rest[:4])[0] not in _ENCRYPTION:
            return size + rest
        writer.write(b"N")


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def _until_ready(server: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the answers of a server, the last of which says that it is ready."""
    part = b""
    while part[:1] != b"Z":
        part = await _message(server)
        yield part


@asynccontextmanager
async def transaction_pooler(url: str) -> AsyncIterator[str]:
    """Yield the URL of a database, as a pooler serves it within the block."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    pooler = await asyncio.start_server(_Pooler(parts.hostname, parts.port).serve, parts.hostname, 0)
    port = pooler.sockets[0].getsockname()[1]
    try:
        yield urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.hostname}:{port}"))
    finally:
        pooler.close()
