"""Forgetting everything that an installation has stored, but for its key, its tokens and who leads."""

import asyncio
from typing import Final

from ....subjects import Bucket, Stream
from ..client.connection import Connection, JetStreamError
from ..client.names import Names

_NO_STREAM: Final = 10_059
KEPT: Final = frozenset({Bucket.INSTALLATION, Bucket.LEADER, Bucket.TOKENS})


async def wipe(connection: Connection, names: Names) -> None:
    """Purge every stream and bucket. Sequences go on, so that whatever remembers an old one finds out.

    Raises:
        LogUnavailable: no answer.
    """
    buckets = [names.bucket_stream(bucket) for bucket in Bucket if bucket not in KEPT]
    await asyncio.gather(*(_purge(connection, stream) for stream in (*map(names.stream, Stream), *buckets)))


async def _purge(connection: Connection, stream: str) -> None:
    try:
        await connection.manage(f"STREAM.PURGE.{stream}")
    except JetStreamError as error:
        if error.err_code != _NO_STREAM:
            raise
