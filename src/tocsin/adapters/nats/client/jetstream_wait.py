"""Waiting for JetStream: a server may well be there while its cluster elects, or has no majority."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import structlog

from ....ports import LogUnavailable, NotAllowed
from ....subjects import INSTALLATION_KEY, Bucket, Stream
from ..log.projections import NatsProjections, is_marker
from . import wire
from .connection import Connection, JetStreamError
from .names import Names

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
        with suppress(JetStreamError, NotAllowed):
            await insistently(partial(connection.manage, f"STREAM.INFO.{stream}"), within=None)


def why_silent(connection: Connection, error: LogUnavailable) -> str:
    """Why a server that is connected left a request without an answer, and what to do about it.

    A majority can be lost at any request: until its lease ends, a leader without one still answers what it knows itself.
    """
    if not connection.greeting.get("jetstream") or "not enabled" in str(error):
        return (
            "JetStream is not enabled: start nats-server with --jetstream or a `jetstream` block in its "
            "configuration, and where it has accounts, enable it for this one"
        )
    if "cluster" not in connection.greeting:
        return f"JetStream does not answer: look at the load and the log of its server, then try again ({error})"
    return (
        "JetStream does not answer: its cluster elects, or has no majority; try again once more than half of its "
        f"servers are up ({error})"
    )


async def find_key(connection: Connection, names: Names) -> bytes | None:
    """The installation's key; None where nobody ever made one, and not just where a replica does not know of it yet.

    A node that has just come back answers direct gets behind its leader, or not at all. So only the leader is believed
    when it says that there is nothing.

    Raises:
        LogUnavailable: nobody can tell now.
        NotAllowed: whoever asks may not see it.
    """
    silence = LogUnavailable("the replica that answers does not know the installation's key yet")
    try:
        found = await NatsProjections(connection, names).stored(Bucket.INSTALLATION, INSTALLATION_KEY)
    except NotAllowed:
        raise
    except LogUnavailable as error:
        found, silence = None, error
    if found is not None:
        return None if is_marker(found) else found.body
    bucket = names.bucket_stream(Bucket.INSTALLATION)
    try:
        state = await connection.look_up(f"STREAM.INFO.{bucket}", absent=wire.STREAM_NOT_FOUND)
    except NotAllowed:
        raise
    except LogUnavailable as error:
        raise LogUnavailable(why_silent(connection, error)) from error
    if state is None or not state["state"]["messages"]:
        return None
    raise silence


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
