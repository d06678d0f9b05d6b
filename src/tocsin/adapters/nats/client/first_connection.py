"""Reaching a first server.

For how long that is tried, and what is said when it is given up.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from nats import errors

from .... import telemetry
from ....settings import without_password
from .connection_errors import ConnectionFailed, is_not_listening, reason_for

_WHAT_HELPS: Final = "Start it, or name another with --nats, TOCSIN_NATS_URL or `nats.url`"

_log = telemetry.get_logger("tocsin.nats")


class FirstConnection:
    """The attempts to reach a first server.

    The client tries without a limit; when that makes no sense is decided here.
    """

    def __init__(self, servers: str | list[str]) -> None:
        urls = [servers] if isinstance(servers, str) else servers
        self.where = ", ".join(map(without_password, urls))
        self.is_over = False
        self._refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._absent = asyncio.Event()
        """Set once no process listens at any of the servers."""
        self._absent_in_a_row = 0
        self._server_count = len(urls)
        self._last: Exception | None = None
        self._told = ""

    def failed(self, error: Exception) -> None:
        """One attempt failed."""
        self._last = error
        self._absent_in_a_row = self._absent_in_a_row + 1 if is_not_listening(error) else 0
        if self._absent_in_a_row >= self._server_count:
            self._absent.set()
        reason = reason_for(error)
        if reason.is_final and not self._refused.done():
            self._refused.set_result(error)
        if reason.text != self._told:
            self._told = reason.text
            _log.warning("waiting for NATS", action="nats-awaited", servers=self.where, reason=reason.text)

    async def run(self, connecting: Coroutine[Any, Any, None], within: float | None) -> None:
        """Wait until the client is connected.

        A limited wait ends at once if no process listens at any of the servers: only a server that runs can answer later.

        Raises:
            LogUnavailable: a server refused the client, no process listens at any server, or `within` seconds are over.
        """
        attempt = asyncio.ensure_future(connecting)
        awaited: list[asyncio.Future[Any]] = [attempt, self._refused]
        absent = asyncio.ensure_future(self._absent.wait())
        if within is not None:
            awaited.append(absent)
        try:
            await asyncio.wait(awaited, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                attempt.result()
            elif self._refused.done():
                error = self._refused.result()
                raise ConnectionFailed(f"{self.where}: {reason_for(error).text}", error)
            else:
                reason = reason_for(self._last).text
                raise ConnectionFailed(f"no NATS server answers at {self.where}: {reason}. {_WHAT_HELPS}", self._last)
        except (errors.Error, OSError) as error:  # asyncio's TimeoutError is an OSError
            raise ConnectionFailed(f"{self.where}: {reason_for(error).text}", error) from error
        finally:
            self.is_over = True
            self._refused.cancel()
            absent.cancel()
            if not attempt.done():
                attempt.cancel()
                await asyncio.wait([attempt])
