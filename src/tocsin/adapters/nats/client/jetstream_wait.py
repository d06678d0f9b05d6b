"""Waiting for JetStream while its cluster elects a leader or has no majority."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from .... import telemetry
from ....ports import LaggingReplica, LogUnavailable, NotAllowed
from ....subjects import INSTALLATION_KEY, Bucket
from ..admin.provision_errors import JetStreamDisabled, JetStreamUnavailable
from ..log.projections import NatsProjections, is_marker
from . import wire
from .connection import Connection
from .names import Names
from .wire import JetStreamError

LEADER_TIMEOUT_S: Final = 60.0
"""The time that existing streams may be without a leader before a caller gives up."""
_PAUSE: Final = 0.5

T = TypeVar("T")
_log = telemetry.get_logger("tocsin.nats")


async def await_log(connection: Connection, names: Names) -> None:
    """Wait without a limit until the streams of an installation have leaders.

    Streams that do not exist, or that this user may not see, are skipped: their users report a clearer error.
    """

    async def look_at(stream: str) -> None:
        try:
            await connection.manage(f"STREAM.INFO.{stream}")
        except NotAllowed:
            raise
        except LogUnavailable as error:
            raise silence_of(connection, error) from error

    for stream in (names.commits_stream, names.bucket_stream(Bucket.INSTALLATION)):
        with suppress(JetStreamError, NotAllowed):
            await retry_until_available(partial(look_at, stream), within=None)


def silence_of(connection: Connection, error: LogUnavailable) -> JetStreamDisabled | JetStreamUnavailable:
    """Return the reason why a connected server did not reply, and what to do.

    A majority can be lost at any request: until its lease ends, a leader without a majority still replies with its own
    state.
    """
    if not connection.greeting.get("jetstream") or "not enabled" in str(error):
        return JetStreamDisabled(
            "JetStream is not enabled: start nats-server with --jetstream or a `jetstream` block in its "
            "configuration; if the server has accounts, enable it for the account of this user"
        )
    advice = "check the load and the log of its server, then try again"
    if "cluster" in connection.greeting:
        advice = "its cluster elects, or has no majority; try again when more than half of its servers run"
    return JetStreamUnavailable(f"JetStream does not answer: {advice} ({error})")


async def find_key(connection: Connection, names: Names) -> bytes | None:
    """Return the installation's key, or None if it was never created.

    A node that has just restarted answers direct gets from stale data, or not at all. Therefore only the leader is
    believed if it reports that there is no key.

    Raises:
        LogUnavailable: no server can tell now.
        NotAllowed: this user may not read the key.
    """
    silence: LogUnavailable = LaggingReplica("the replica that answered does not have the installation's key yet")
    try:
        message = await NatsProjections(connection, names).stored(Bucket.INSTALLATION, INSTALLATION_KEY)
    except NotAllowed:
        raise
    except LogUnavailable as error:
        message, silence = None, error
    if message is not None:
        return None if is_marker(message) else message.body
    bucket = names.bucket_stream(Bucket.INSTALLATION)
    try:
        state = await connection.find(f"STREAM.INFO.{bucket}", absent=wire.STREAM_NOT_FOUND)
    except NotAllowed:
        raise
    except LogUnavailable as error:
        raise silence_of(connection, error) from error
    if state is None or not state["state"]["messages"]:
        return None
    raise silence


async def retry_until_available(request: Callable[[], Awaitable[T]], *, within: float | None = LEADER_TIMEOUT_S) -> T:
    """Call `request` again until it succeeds, for `within` seconds (None: without a limit).

    It raises `NotAllowed` and `JetStreamDisabled` at once: no wait resolves them.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    is_reported = False
    while True:
        try:
            return await request()
        except (NotAllowed, JetStreamDisabled):
            raise
        except LogUnavailable as error:
            if within is not None and loop.time() - start >= within:
                raise
            if not is_reported:
                is_reported = True
                _log.warning("waiting for JetStream", action="log-awaited", reason=str(error))
        await asyncio.sleep(_PAUSE)
