"""Attacks of a viewer of the HTTP API: readers that do not read, and requests that do not end."""

import asyncio
from contextlib import AsyncExitStack
from itertools import cycle
from socket import SO_RCVBUF, SOL_SOCKET, socket
from typing import Final

import httpx

from tests.ports import free_port
from tests.system.chaos.attackers import TIMEOUT_S, Attackers, Tally
from tests.system.processes import Site
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.domain.access import Role

HELD_S: Final = 5.0
"""Seconds for which connections are held."""
READERS: Final = 5
HALVES: Final = 10
RECEIVED: Final = 4_096
"""Bytes of the buffer of a reader that does not read."""
HOST: Final = "127.0.0.1"
TRIGGER: Final = "/v1/jobs/guarded/trigger"


class ApiViewers:
    """Clients with the token of a viewer."""

    def __init__(self, token: str) -> None:
        self.port = free_port()
        self._token = token
        self._head = f"Host: {HOST}\r\nAuthorization: Bearer {token}\r\n"
        half_requests = (
            "GET /v1/jobs HTTP/1.1\r\n" + self._head + "X-Half: ",
            f"POST {TRIGGER} HTTP/1.1\r\n" + self._head + 'Content-Length: 9000\r\n\r\n{"inp',
            "GET /v1/ev",
        )
        self._halves = cycle(half_requests)

    @classmethod
    async def of(cls, tocsin: Site) -> "ApiViewers":
        """Create the token: from then on the API requires one, and starts on `port`."""
        installation = tocsin.installation
        token, _ = await Tokens(installation.projections, installation.clock).create("eve", [Role.VIEWER])
        return cls(token)

    def join(self, attackers: Attackers) -> None:
        """Add each attack."""
        attackers.add_round("slow readers of events", self.read_slowly)
        attackers.add_round("half-sent requests", self.send_halves)

    async def read_slowly(self, tally: Tally) -> int:
        """Open streams of all stored events, read the head of each answer, and then nothing."""
        async with AsyncExitStack() as stack:
            for _ in range(READERS):
                reader, writer = await self._connect(stack)
                writer.write(f"GET /v1/events?after=0.0 HTTP/1.1\r\n{self._head}\r\n".encode())
                async with asyncio.timeout(TIMEOUT_S):
                    status = await reader.readline()
                if not status:
                    raise ConnectionResetError(f"no answer from the API on port {self.port}")
                tally.refused += b" 200 " not in status
            await asyncio.sleep(HELD_S)
        return READERS

    async def send_halves(self, tally: Tally) -> int:
        """Begin requests and do not end them; a refusal may come before the end."""
        async with AsyncExitStack() as stack:
            readers = []
            for _ in range(HALVES):
                reader, writer = await self._connect(stack)
                writer.write(next(self._halves).encode())
                await writer.drain()
                readers.append(reader)
            await asyncio.sleep(HELD_S)
            for reader in readers:
                tally.refused += await _is_answered(reader)
        return HALVES

    async def _connect(self, stack: AsyncExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket()
        connection.setblocking(False)
        connection.setsockopt(SOL_SOCKET, SO_RCVBUF, RECEIVED)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (HOST, self.port))
        except OSError:
            connection.close()
            raise
        reader, writer = await asyncio.open_connection(sock=connection, limit=RECEIVED)
        stack.callback(writer.close)
        return reader, writer

    async def wrong(self) -> list[str]:
        """Check that the API still answers a viewer, and as a viewer only."""
        known = {"Authorization": f"Bearer {self._token}"}
        expected: list[tuple[str, str, dict[str, str], int]] = [
            ("GET", "/v1/jobs", known, 200),
            ("GET", "/v1/jobs", {}, 401),
            ("POST", TRIGGER, known, 403),
        ]
        problems = []
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}", timeout=6 * TIMEOUT_S) as client:
            for method, path, headers, status in expected:
                try:
                    answer = await client.request(method, path, headers=headers)
                except httpx.HTTPError as error:
                    problems.append(f"{method} {path}: {error!r} after the attacks, not {status}")
                    continue
                if answer.status_code != status:
                    problems.append(f"{method} {path}: {answer.status_code} after the attacks, not {status}")
        return problems


async def _is_answered(reader: asyncio.StreamReader) -> bool:
    """Whether the API has answered a request that did not end, or has closed its connection."""
    try:
        async with asyncio.timeout(0.01):
            await reader.read(1)
    except TimeoutError:
        return False
    return True
