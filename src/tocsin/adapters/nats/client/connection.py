"""A NATS connection with many concurrent requests, each waiting for its own reply.

All replies arrive in one wildcard inbox, and the last token of a reply's subject names its request. This costs less per
call than `Client.request`: the token is a counter, and one timer serves all requests. It also lets a reply consist of
many messages, as the reply of a batched direct get does.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic_core import from_json

from .... import telemetry
from ....ports import LogUnavailable, NotAllowed
from . import wire
from .connection_attempts import FirstConnection
from .fast_client import Headers, listen, send, server_info
from .replies import JetStreamError, raise_rejection, status_of, stored_sequence

REQUEST_TIMEOUT_S: Final = 5.0
"""The time limit of a request."""
SWEEP_INTERVAL_S: Final = 0.25
"""The interval at which expired requests are ended."""
PUBLISH_TIMEOUT_S: Final = 15.0
"""The time for which a publish is retried. Electing the leader of a replicated stream takes 4 to 9 seconds."""
_STATE_QUERIES: Final = ("STREAM.INFO.", "CONSUMER.INFO.")
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

CONNECTION_ERRORS: Final = (
    errors.ConnectionClosedError,
    errors.ConnectionDrainingError,
    errors.ConnectionReconnectingError,
    errors.OutboundBufferLimitError,
    errors.StaleConnectionError,
    errors.TimeoutError,
)
"""Errors of the connection, which say nothing about the request itself."""
CLOSING_ERRORS: Final = (OSError, RuntimeError, *CONNECTION_ERRORS)
"""Errors of closing a client whose server is away: the client flushes into a closed transport."""

Json: TypeAlias = dict[str, Any]

RECONNECT_FOREVER: Final[Json] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.2}
"""Options of every NATS client of ours: reconnect without a limit, so that a process survives any outage."""

_VIOLATION: Final = re.compile(r'permissions violation for (?P<verb>publish|subscription) to "(?P<subject>[^"]*)"')

_log = telemetry.get_logger("tocsin.nats")


@dataclass(frozen=True, slots=True)
class _Request:
    subject: str
    receive: Callable[[Msg], None]
    answer: "asyncio.Future[Msg]"
    until: float
    """The loop's time at which the request expires."""

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Connection:
    """A client and its pending requests."""

    def __init__(
        self, client: Client, *, timeout: float = REQUEST_TIMEOUT_S, patience: float = PUBLISH_TIMEOUT_S
    ) -> None:
        """Use a client.

        `timeout` is for one request and `patience` for a publish with all retries, in seconds.
        """
        self.client = client
        self._timeout = timeout
        self._patience = patience
        self._inbox = ""  # created after the client is connected, because only then it knows its prefix
        self._is_subscribed = False
        self._tokens = itertools.count(1)
        self._requests: dict[str, _Request] = {}
        """Pending requests by token, in the order of their expiry."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._on_interrupt: set[Callable[[], None]] = set()

    @property
    def greeting(self) -> Json:
        """The server's INFO message."""
        return server_info(self.client)

    def interrupt(self) -> None:
        """Fail every pending request, because the connection and the replies were lost.

        The client's disconnect callback calls this. Without it, each request would wait until it expires.
        """
        for request in self._requests.values():
            request.fail(errors.StaleConnectionError())
        for callback in tuple(self._on_interrupt):
            callback()

    def on_permission_error(self, error: Exception) -> None:
        """Fail the requests that a permission error of the server is about.

        Without it, each of them would wait until it expires.
        """
        violation = _VIOLATION.search(str(error))
        if violation is None:
            return
        for request in self._requests.values():
            if violation["verb"] == "subscription":
                reason = f"this NATS user may not subscribe to {self._inbox}*: set `nats.inbox_prefix` to the prefix that it may use"
                request.fail(NotAllowed(reason))
            elif request.subject.lower() == violation["subject"]:  # the client lowers the text of the error
                request.fail(NotAllowed(f"{request.subject}: this NATS user may not publish there"))

    def on_interrupt(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at each interruption; the returned function ends that."""
        self._on_interrupt.add(callback)
        return lambda: self._on_interrupt.discard(callback)

    async def store(self, subject: str, body: bytes, headers: Headers) -> int:
        """Publish a message into a stream and return its sequence.

        Without a reply, the message is sent again until the patience is over. `headers` must therefore make a second
        copy harmless, by a guard or a message id. If the reply to a guarded message was lost, the retry ends as a
        conflict, and the caller finds its message when it folds the scope again.

        Raises:
            SequenceConflict: the guard failed.
            JetStreamError: the stream does not accept the message.
            LogUnavailable: there was no reply, or the stream has no leader.
        """
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._patience, _FIRST_PAUSE_S
        while True:
            try:
                return stored_sequence(subject, (await self.request(subject, body, headers)).data)
            except NotAllowed:
                raise
            except LogUnavailable:
                if loop.time() + pause >= deadline or self.client.is_closed:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def manage(self, verb: str, request: bytes = b"", *, by_leader: bool = True) -> Json:
        """Send a request to the JetStream API, such as `STREAM.INFO.<name>`, and return the reply.

        If a stream has no leader, a replica replies with its own, possibly stale state. Such a reply counts only if
        `by_leader` is False.

        Raises:
            JetStreamError: the server rejected the request.
            LogUnavailable: there was no reply, or the server cannot serve the request now.
        """
        reply: Json = from_json((await self.request(f"$JS.API.{verb}", request)).data)
        if error := reply.get("error"):
            raise_rejection(verb, error)
        cluster = reply.get("cluster")
        if by_leader and verb.startswith(_STATE_QUERIES) and cluster and not cluster.get("leader"):
            raise LogUnavailable(f"{verb}: it has no leader")
        return reply

    async def find(self, verb: str, request: bytes = b"", *, absent: int, by_leader: bool = True) -> Json | None:
        """Send a request to the JetStream API.

        Return None if the server replies with the error `absent`.

        Raises:
            JetStreamError: the server rejected the request for another reason.
            LogUnavailable: there was no reply, or the server cannot serve the request now.
        """
        try:
            return await self.manage(verb, request, by_leader=by_leader)
        except JetStreamError as error:
            if error.err_code == absent:
                return None
            raise

    async def request(self, subject: str, body: bytes = b"", headers: Headers | None = None) -> Msg:
        """Send a request and return its reply, which may be a status message.

        Raises:
            LogUnavailable: there was no reply.
        """
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def receive(message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        return await self._send(subject, body, headers, receive, answer)

    async def request_many(self, subject: str, body: bytes) -> tuple[list[Msg], Msg]:
        """Send a request; return its replies, and the status message that ends them.

        Raises:
            LogUnavailable: the replies did not end in time.
        """
        messages: list[Msg] = []
        end: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def receive(message: Msg) -> None:
            if status_of(message) is None:
                messages.append(message)
            elif not end.done():
                end.set_result(message)

        return messages, await self._send(subject, body, None, receive, end)

    async def _send(
        self,
        subject: str,
        body: bytes,
        headers: Headers | None,
        receive: Callable[[Msg], None],
        answer: "asyncio.Future[Msg]",
    ) -> Msg:
        token = str(next(self._tokens))
        loop = asyncio.get_running_loop()
        self._requests[token] = _Request(subject, receive, answer, loop.time() + self._timeout)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep, loop)
        try:
            if not self._is_subscribed:
                await self._listen()
            await send(self.client, subject, body, reply=self._inbox + token, headers=headers)
            message = await answer
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{subject}: {error!r}") from error
        finally:
            del self._requests[token]
        if status_of(message) == wire.NO_RESPONDERS:
            raise LogUnavailable(f"{subject}: no server answers it")
        return message

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail expired requests.

        One timer serves all requests, because a timer for each would cost more than the request itself.
        """
        now = loop.time()
        for request in self._requests.values():
            if request.until > now:
                break
            request.fail(errors.TimeoutError())
        self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep, loop) if self._requests else None

    async def _listen(self) -> None:
        # The subscription is in the client's buffer before this yields, so no request overtakes it.
        self._is_subscribed = True
        self._inbox = self._inbox or f"{self.client.new_inbox()}."
        try:
            await listen(self.client, f"{self._inbox}*", self._receive)
        except BaseException:
            self._is_subscribed = False
            raise

    def _receive(self, message: Msg) -> None:
        request = self._requests.get(message.subject[len(self._inbox) :])
        if request is not None:
            request.receive(message)


@asynccontextmanager
async def connect(
    servers: str | list[str],
    *,
    within: float | None = 10.0,
    is_encrypted: bool = False,
    **options: Any,  # noqa: ANN401 - the options of `nats.connect` have many types
) -> AsyncIterator[Connection]:
    """Open a connection that survives restarts of the servers; close it at the end.

    Args:
        servers: their URLs.
        within: seconds until the first server must answer; None for no limit.
        is_encrypted: reject a server that does not speak TLS.
        options: options of `nats.connect`.

    Raises:
        LogUnavailable: no server answered in time, or one rejected the client; the text says which and why.
    """
    client = Client()
    connection = Connection(client)
    opening = FirstConnection(servers)

    async def on_disconnect() -> None:
        connection.interrupt()

    async def on_error(error: Exception) -> None:
        if opening.is_over:
            connection.on_permission_error(error)
            _log.warning("connection error", action="nats-error", error=repr(error))
        else:
            opening.record_failure(error)

    settings: Json = {
        "name": "tocsin",
        "skip_subject_validation": True,  # `subjects` builds each subject from names that were validated before
        **RECONNECT_FOREVER,
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        **options,
    }
    try:
        await opening.run(client.connect(servers, **settings), within)
        if is_encrypted and not connection.greeting.get(
            "tls_required"
        ):  # the client uses TLS only if the server requires it
            raise LogUnavailable(
                f"{opening.where}: that server does not speak TLS, and `nats.tls` or a `tls://` URL requires it"
            )
        yield connection
    finally:
        with suppress(*CLOSING_ERRORS):
            await client.close()
