"""The event stream of the API, read as the facts that it shows (`GET /v1/events`)."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from ... import telemetry
from ...domain.events import Message, Recorded
from ...ports import ApiUnavailable
from .api_client import ApiClient, recorded_of

FIRST: Final = "0.0"
"""The position before the first stored event."""
SILENCE_S: Final = 45.0
"""Time without a byte after which the connection is lost. The API sends a comment every 15 seconds."""
PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the connection is opened again; the last is repeated."""
COMMENT: Final = ""
"""The name under which a comment stands among the fields of an event."""
MAX_LINE_BYTES: Final = 16_000_000
"""Bytes of a line. The log stores no message of this size."""
_FIELDS: Final = frozenset({COMMENT, "id", "event", "data", "retry"})

_log = telemetry.get_logger("tocsin.http")


class EndlessLine(Exception):
    """A line is longer than `MAX_LINE_BYTES`."""


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Mapping[str, str]]:
    """Yield the fields of each event. The API writes each field in one line.

    Raises:
        EndlessLine: the answer is no event stream of the API.
    """
    fields: dict[str, str] = {}
    async for line in _lines(pieces):
        name, _, value = line.partition(": ")
        if not line:
            if fields:
                yield fields
            fields = {}
        elif name in _FIELDS:
            fields[name] = value


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if len(rest) > MAX_LINE_BYTES:
            raise EndlessLine(f"a line has more than {MAX_LINE_BYTES:,} bytes")
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line.decode()


async def follow_events(
    api: ApiClient, job: str | None = None, *, after: str | None = None
) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
    """Yield facts in batches after a position; None: from now on.

    An empty batch comes first, and again whenever the connection was lost: if no event arrived before, facts may be missing.

    Raises:
        ApiUnavailable: the API does not answer at the beginning.
        NotPermitted: the token does not permit it, or no longer does.
    """
    position, failures, is_open = after, 0, False
    while True:
        try:
            async with aclosing(_read(api, job, position)) as batches:
                async for newest, batch in batches:
                    position, failures, is_open = newest, 0, True
                    yield batch
        except ApiUnavailable as error:
            if not is_open:
                raise
            _log.info("event stream lost", action="follow-again", job=job, reason=repr(error))
            yield ()
        await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
        failures += 1


async def _read(
    api: ApiClient, job: str | None, position: str | None
) -> AsyncGenerator[tuple[str | None, Sequence[Recorded[Message]]], None]:
    """Yield the facts of one connection after an empty batch, each with its position."""
    query = {name: value for name, value in (("job", job), ("after", position)) if value is not None}
    async with api.stream("/v1/events", query=query, silence_s=SILENCE_S) as response:
        yield position, ()
        try:
            async for event in events(response.aiter_bytes()):
                if "data" not in event:
                    continue
                position = event.get("id", position)
                fact = json.loads(event["data"])
                if "type" in fact["fact"]:  # a public event has none, and repeats a fact
                    yield position, (recorded_of(fact),)
        except EndlessLine as error:
            raise ApiUnavailable(f"{response.url}: {error}") from error
