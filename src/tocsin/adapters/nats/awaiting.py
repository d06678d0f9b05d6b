"""Waiting for JetStream: a server may well be there while its cluster elects, or has no majority."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import structlog

from ...ports import LogUnavailable, NotAllowed
from ...subjects import Bucket, Stream
from .connection import Connection, RefusedError
from .naming import Names

PATIENCE: Final = 60.0
"""Seconds that what exists may go without a leader until nobody waits any longer."""
_PAUSE: Final = 0.5

T = TypeVar("T")
_log = structlog.get_logger("tocsin.nats")


async def await_log(connection: Connection, names: Names) -> None:
    """Wait until what an installation starts from has leaders, however long that takes.

    What does not exist, or may not be asked after, is not waited for: whoever needs it says so more clearly.
    """
    streams = (names.stream(Stream.LEDGER), names.stream(Stream.LOG), names.bucket_stream(Bucket.INSTALLATION))
    for stream in streams:
        with suppress(RefusedError, NotAllowed):
            await insistently(partial(connection.manage, f"STREAM.INFO.{stream}"), within=None)


async def insistently(ask: Callable[[], Awaitable[T]], *, within: float | None = PATIENCE) -> T:
    """Ask until there is an answer.

    Raises:
        LogUnavailable: there was none for `within` seconds (None: for ever).
        NotAllowed: there never will be.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    is_told = False
    while True:
        try:
            return await ask()
        except NotAllowed:
            raise
        except LogUnavailable as error:
            if within is not None and loop.time() - begun >= within:
                raise
            if not is_told:
                is_told = True
                _log.warning("the log does not answer yet", action="log-awaited", reason=str(error))
        await asyncio.sleep(_PAUSE)
