"""The end of a connection, by the task that opened it or by the server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from nats.aio.client import Client

from .... import telemetry
from ....ports import ConnectionEnded
from .requests import CONNECTION_ERRORS

CLOSED_CHECK_INTERVAL_S: Final = 0.5
"""Seconds between two looks at whether the server ended the connection for good."""
CLOSED_WITHIN_S: Final = 2.0
"""Seconds that a connection may take to close after its task was cancelled again."""
CLOSING_ERRORS: Final = (OSError, RuntimeError, *CONNECTION_ERRORS)
"""Errors of closing a client whose server is away: the client flushes into a closed transport."""

_log = telemetry.get_logger("tocsin.nats")


async def close(client: Client) -> None:
    """Close a client, also if this task is cancelled meanwhile.

    nats-py would leave the socket open then. After a cancellation it waits `CLOSED_WITHIN_S` seconds at most.
    """
    closing = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait([closing])
    except asyncio.CancelledError:
        await asyncio.wait([closing], timeout=CLOSED_WITHIN_S)
        closing.cancel()
        raise
    finally:
        if closing.done():
            with suppress(*CLOSING_ERRORS, asyncio.CancelledError):
                closing.result()


class Ending:
    """Cancels a task if the server ends the connection for good.

    nats-py calls no callback if it fails while it closes a connection, for example on data that it cannot send any more.
    So its state is looked at instead.
    """

    def __init__(self, client: Client, abandon: Callable[[], None]) -> None:
        """`abandon` is called when no reply can come any more."""
        self._client = client
        self._abandon = abandon
        self._reason: str | None = None

    async def _cancel_when_closed(self, task: "asyncio.Task[object] | None") -> None:
        try:
            while not self._client.is_closed:  # noqa: ASYNC110 - the client may end without a callback
                await asyncio.sleep(CLOSED_CHECK_INTERVAL_S)
        except asyncio.CancelledError:
            # At a second Ctrl-C, `asyncio.run` cancels all tasks, also those in which nats-py reads.
            self._abandon()
            raise
        self._reason = str(self._client.last_error or "no reason given")
        _log.error("NATS ended the connection for good", action="nats-connection-ended", error=self._reason)
        if task is not None:
            task.cancel()

    @asynccontextmanager
    async def watched(self, where: str) -> AsyncIterator[None]:
        """Watch the connection for the task inside; raise `ConnectionEnded` at its end."""
        task = asyncio.current_task()
        watcher = asyncio.create_task(self._cancel_when_closed(task))
        try:
            yield
        except BaseException as error:
            if self._reason is None:
                raise
            if task is not None:
                task.uncancel()
            raise ConnectionEnded.of(where, self._reason) from error
        finally:
            watcher.cancel()
