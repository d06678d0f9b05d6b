"""The messages between `tocsin dev` and the process of an application.

A message is a JSON document after its length.
"""

import json
import socket
from asyncio import IncompleteReadError, StreamReader
from typing import Any, Final, TypeAlias

Document: TypeAlias = dict[str, Any]

_LENGTH_BYTES: Final = 8


def written(document: Document) -> bytes:
    """Return a message as bytes."""
    body = json.dumps(document).encode()
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read(reader: StreamReader) -> Document | None:
    """Return the next message; None: the other process has ended."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        document: Document = json.loads(await reader.readexactly(length))
    except (IncompleteReadError, ConnectionError):
        return None
    return document


def read_blocking(control: socket.socket) -> Document | None:
    """Return the next message; None: the other process has ended."""
    try:
        with control.makefile("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "big")
            body = file.read(length)
    except ConnectionError:
        return None
    document: Document | None = json.loads(body) if body else None
    return document
