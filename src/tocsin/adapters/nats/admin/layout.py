"""The layout number in the metadata of an installation's streams."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from ....ports import NotAllowed, UnsupportedLayout
from ....subjects import LAYOUT, LAYOUT_KEY, Bucket, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names


def all_streams(names: Names) -> tuple[str, ...]:
    """Return the names of all streams of an installation, buckets and archive included."""
    return (*map(names.stream, Stream), *map(names.bucket_stream, Bucket), names.archive_stream)


def layout_of(config: Json) -> int | None:
    """Return the layout in a stream's configuration; None: it has no number."""
    number: str = (config.get("metadata") or {}).get(LAYOUT_KEY, "")
    return int(number) if number.isdecimal() else None


async def require_layout(connection: Connection, names: Names, streams: Iterable[str] | None = None) -> None:
    """Check the layout of streams.

    By default, check the ledger and the log, because every user may read their state. Streams that do not exist, or
    whose state this user may not read, are skipped.

    Raises:
        UnsupportedLayout: a stream has another layout than this version needs; the text lists the steps.
        LogUnavailable: the server does not answer.
    """
    if streams is None:
        streams = names.stream(Stream.LEDGER), names.stream(Stream.LOG)
    await asyncio.gather(*(_require(connection, names, stream) for stream in streams))


async def _require(connection: Connection, names: Names, stream: str) -> None:
    with suppress(NotAllowed):
        info = await connection.find(f"STREAM.INFO.{stream}", absent=wire.STREAM_NOT_FOUND, by_leader=False)
        if info is not None and (layout := layout_of(info["config"])) != LAYOUT:
            raise UnsupportedLayout(stream, layout, needed=LAYOUT, streams=all_streams(names))
