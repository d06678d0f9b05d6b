"""An HTTP/1.1 client that costs little: one kept connection, one request at a time, JSON.

Its CPU time is part of the figure, on the machine that it shares with the server; the usual Python clients use as much CPU as the
server itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

OK: Final = 200
_END: Final = b"\r\n\r\n"


class LeanClient:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        """Use `host` in the Host header."""
        self._reader = reader
        self._writer = writer
        self._host = host.encode()

    async def post(self, path: str, body: object) -> Any:  # noqa: ANN401 - JSON
        """Send a POST request and return the answer.

        Raises:
            RuntimeError: the status is not 200.
        """
        content = json.dumps(body).encode()
        self._writer.write(
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), self._host, len(content), content)
        )
        head = await self._reader.readuntil(_END)
        length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
        answer = await self._reader.readexactly(int(length))
        if int(head[9:12]) != OK:
            raise RuntimeError(f"{path}: {head[9:12].decode()} {answer.decode()}")
        return json.loads(answer)


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[LeanClient]:
    """Open a connection, and close it after the block."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield LeanClient(reader, writer, f"{host}:{port}")
    finally:
        writer.close()
