"""The transfer of whole streams from and to nats-server, which keeps sequences, times and headers.

The server sends a snapshot in pieces to a subject and waits for an acknowledgement of each. A restored stream takes its configuration
from the request, and so its number of replicas.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

from nats.errors import Error as NatsError

from ....ports import LogUnavailable
from ..client import wire
from ..client.connection import Connection, Json
from ..client.transport import Outgoing
from .errors import TransferFailed

PIECE: Final = 262_144
"""Bytes of a piece; the default limit of a message is 1 MiB."""
SILENCE_S: Final = 30.0
"""Seconds without a piece or an answer after which a transfer has failed."""
STORING_S: Final = 600.0
"""Seconds in which the server must have stored a stream after its last piece."""


async def take_snapshot(connection: Connection, stream: str, out: BinaryIO) -> Json | None:
    """Write a snapshot of a stream; return its state, or None without the stream.

    Consumers are left out. The stream accepts messages meanwhile, and the snapshot ends at the last sequence of the state.
    """
    if await connection.find(f"STREAM.INFO.{stream}", absent=wire.STREAM_NOT_FOUND) is None:
        return None  # no server of a cluster answers a request for its snapshot
    inbox = connection.client.new_inbox()
    pieces: asyncio.Queue[tuple[str, bytes, str]] = asyncio.Queue()

    def receive(_: str, reply: str, body: bytes, headers: Mapping[str, str] | None) -> None:
        pieces.put_nowait((reply, body, _status(headers)))

    subscription = await connection.transport.listen(inbox, receive)
    try:
        request = json.dumps({"deliver_subject": inbox, "no_consumers": True, "chunk_size": PIECE}).encode()
        answer = await connection.manage(f"STREAM.SNAPSHOT.{stream}", request)
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    reply, body, status = await pieces.get()
            except TimeoutError:
                raise TransferFailed(f"stream {stream}: no piece came for {SILENCE_S:g} seconds. Try again.") from None
            if not body:
                if status not in {"", wire.END_OF_BATCH}:
                    raise TransferFailed(f"stream {stream}: the server ended the snapshot: {status}. Try again.")
                state: Json = answer["state"]
                return state
            await asyncio.to_thread(out.write, body)
            if reply:
                await connection.transport.send([Outgoing(reply)])
    finally:
        await subscription.unsubscribe()


async def restore_snapshot(connection: Connection, config: Json, state: Json, pieces: Iterator[bytes]) -> Json:
    """Create a stream from a snapshot; return its state, or raise `TransferFailed`."""
    stream: str = config["name"]
    try:
        answer = await connection.manage(
            f"STREAM.RESTORE.{stream}", json.dumps({"config": config, "state": state}).encode()
        )
        to: str = answer["deliver_subject"]
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            _check(stream, await _request(connection, to, piece, SILENCE_S))
        stored = _check(stream, await _request(connection, to, b"", STORING_S))
    except wire.JetStreamError as error:
        raise TransferFailed(f"stream {stream} cannot be restored: {error.description}") from error
    restored: Json = stored["state"]
    return restored


async def _request(connection: Connection, subject: str, body: bytes, within: float) -> bytes:
    try:
        return (await connection.client.request(subject, body, timeout=within)).data
    except NatsError as error:
        raise LogUnavailable(f"{subject}: {error!r}") from error


def _check(stream: str, answer: bytes) -> Json:
    """Return an answer; an empty one means that the server waits for more."""
    fields: Json = json.loads(answer) if answer else {}
    if error := fields.get("error"):
        raise TransferFailed(f"stream {stream} cannot be restored: {error['description']}")
    return fields


def _status(headers: Mapping[str, str] | None) -> str:
    """Return the status of a message with its description, such as `408 No Interest`."""
    fields = headers or {}
    return f"{fields.get(wire.STATUS, '')} {fields.get(wire.DESCRIPTION, '')}".strip()
