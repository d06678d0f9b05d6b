"""One NATS connection as the adapters use it: many requests under way at once, each waiting for its own answer.

All answers come in on one wildcard inbox and find their request by the last token of its subject. That costs less than
`Client.request` does per call (the token is a counter, the time limit a plain timer), and lets an answer consist of many
messages, as those of a batched direct get do.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import structlog
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic_core import from_json

from ....ports import LogUnavailable, NotAllowed, RequestRefused, SequenceConflict
from . import wire
from .first_connection import FirstConnection
from .inline_delivery import listen
from .publish import Headers, send

TIMEOUT: Final = 5.0
"""Seconds that one request waits for its answer."""
SWEEP: Final = 0.25
"""Seconds between two looks at which requests have waited for too long."""
PATIENCE: Final = 15.0
"""Seconds that a publish is tried for. Electing the leader of a replicated stream takes 4 to 9."""
_TELL_STATE: Final = ("STREAM.INFO.", "CONSUMER.INFO.")
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

TROUBLE: Final = (
    errors.ConnectionClosedError,
    errors.ConnectionDrainingError,
    errors.ConnectionReconnectingError,
    errors.OutboundBufferLimitError,
    errors.StaleConnectionError,
    errors.TimeoutError,
)
"""What befalls a connection, and is no fault of what was asked."""
AWAY: Final = (OSError, RuntimeError, *TROUBLE)
"""What closing may raise while the server is away: the client flushes into a transport that is gone."""

Json: TypeAlias = dict[str, Any]

FOR_EVER: Final[Json] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.2}
"""Options of any NATS client of ours: however long the servers are away, what runs goes on when they are back."""

_VIOLATION: Final = re.compile(r'permissions violation for (?P<what>publish|subscription) to "(?P<subject>[^"]*)"')

_log = structlog.get_logger("tocsin.nats")


class JetStreamError(RequestRefused):
    """JetStream refused a request for a reason that trying again does not change.

    `description` is the server's own, `err_code` its number (0: none was given).
    """

    code = "jetstream-error"

    def __init__(self, what: str, description: str, err_code: int = 0) -> None:
        """`what` was asked."""
        super().__init__(f"{what}: {description} (error {err_code})", description)
        self.err_code = err_code


@dataclass(frozen=True, slots=True)
class _Request:
    subject: str
    receive: Callable[[Msg], None]
    answer: "asyncio.Future[Msg]"
    until: float
    """By the loop's clock, when it is given up."""

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Connection:
    """A client, and the requests that are under way on it."""

    def __init__(self, client: Client, *, timeout: float = TIMEOUT, patience: float = PATIENCE) -> None:
        """`timeout` and `patience` are seconds: for one request, and for a publish with all of its repetitions."""
        self.client = client
        self._timeout = timeout
        self._patience = patience
        self._inbox = ""  # made once the client is connected: only then it knows its prefix
        self._is_listening = False
        self._tokens = itertools.count(1)
        self._requests: dict[str, _Request] = {}
        """In the order in which they were made, and so in which their time is over."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._on_interrupt: set[Callable[[], None]] = set()

    @property
    def greeting(self) -> Json:
        """What the server said of itself (INFO)."""
        return self.client._server_info  # noqa: SLF001 - it has no public name

    def interrupt(self) -> None:
        """Give up every request that is under way: the connection was lost, and their answers with it.

        To be called when the client says so; without it, each of them is given up by its own time limit.
        """
        for request in self._requests.values():
            request.fail(errors.StaleConnectionError())
        for tell in tuple(self._on_interrupt):
            tell()

    def refused(self, error: Exception) -> None:
        """Give up what the server says that this user may not do; without it, that too would wait for its time limit."""
        found = _VIOLATION.search(str(error))
        if found is None:
            return
        for request in self._requests.values():
            if found["what"] == "subscription":
                reason = (
                    f"this NATS user may not subscribe to {self._inbox}*: set `nats.inbox_prefix` to what is its own"
                )
                request.fail(NotAllowed(reason))
            elif request.subject.lower() == found["subject"]:  # the client tells it in small letters
                request.fail(NotAllowed(f"{request.subject}: this NATS user may not publish there"))

    def on_interrupt(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Have `tell` called at each interruption; what is returned ends that."""
        self._on_interrupt.add(tell)
        return lambda: self._on_interrupt.discard(tell)

    async def store(self, subject: str, body: bytes, headers: Headers) -> int:
        """Publish into a stream; the sequence under which it is stored.

        Without an answer it is sent again until the patience is over. So `headers` must make a second one harmless: by a
        guard or a message id. A guarded message whose first answer was lost ends as a conflict, and whoever then folds
        again finds it stored.

        Raises:
            SequenceConflict: the guard refused.
            JetStreamError: the stream does not take such a message.
            LogUnavailable: no answer, or no leader.
        """
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._patience, _FIRST_PAUSE
        while True:
            try:
                return _stored(subject, (await self.ask(subject, body, headers)).data)
            except NotAllowed:
                raise
            except LogUnavailable:
                if loop.time() + pause >= deadline or self.client.is_closed:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def manage(self, verb: str, request: bytes = b"", *, by_leader: bool = True) -> Json:
        """One request to the JetStream API, e.g. `STREAM.INFO.<name>`; its answer.

        Where nobody leads a stream, a replica tells of it what it has itself, be it behind. That is an answer only to who
        asks not `by_leader`.

        Raises:
            JetStreamError: the server says no.
            LogUnavailable: it says nothing, or that it cannot now.
        """
        answer: Json = from_json((await self.ask(f"$JS.API.{verb}", request)).data)
        if error := answer.get("error"):
            _refuse(verb, error)
        cluster = answer.get("cluster")
        if by_leader and verb.startswith(_TELL_STATE) and cluster and not cluster.get("leader"):
            raise LogUnavailable(f"{verb}: it has no leader")
        return answer

    async def look_up(self, verb: str, request: bytes = b"", *, absent: int, by_leader: bool = True) -> Json | None:
        """The same of what may not be there: None where the server refuses with the code `absent`.

        Raises:
            JetStreamError: the server says no for another reason.
            LogUnavailable: it says nothing, or that it cannot now.
        """
        try:
            return await self.manage(verb, request, by_leader=by_leader)
        except JetStreamError as error:
            if error.err_code == absent:
                return None
            raise

    async def ask(self, subject: str, body: bytes = b"", headers: Headers | None = None) -> Msg:
        """One question, one answer (which may be a status message).

        Raises:
            LogUnavailable: no answer.
        """
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def receive(message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        return await self._request(subject, body, headers, receive, answer)

    async def collect(self, subject: str, body: bytes) -> tuple[list[Msg], Msg]:
        """One question that many messages answer; they, and the status message that ends them.

        Raises:
            LogUnavailable: the answer did not come to its end.
        """
        messages: list[Msg] = []
        end: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def receive(message: Msg) -> None:
            if status_of(message) is None:
                messages.append(message)
            elif not end.done():
                end.set_result(message)

        return messages, await self._request(subject, body, None, receive, end)

    async def _request(
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
            self._sweeper = loop.call_later(SWEEP, self._sweep, loop)
        try:
            if not self._is_listening:
                await self._listen()
            await send(self.client, subject, body, reply=self._inbox + token, headers=headers)
            message = await answer
        except TROUBLE as error:
            raise LogUnavailable(f"{subject}: {error!r}") from error
        finally:
            del self._requests[token]
        if status_of(message) == wire.NO_RESPONDERS:
            raise LogUnavailable(f"{subject}: nobody is there to answer")
        return message

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up what has waited for too long. One timer for all: a timer for each request costs more than the request."""
        now = loop.time()
        for request in self._requests.values():
            if request.until > now:
                break
            request.fail(errors.TimeoutError())
        self._sweeper = loop.call_later(SWEEP, self._sweep, loop) if self._requests else None

    async def _listen(self) -> None:
        # The subscription is in the client's buffer before anything here can yield, so that no request overtakes it.
        self._is_listening = True
        self._inbox = self._inbox or f"{self.client.new_inbox()}."
        try:
            await listen(self.client, f"{self._inbox}*", self._receive)
        except BaseException:
            self._is_listening = False
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
    **options: Any,  # noqa: ANN401 - as various as those of `nats.connect`
) -> AsyncIterator[Connection]:
    """A connection that survives the servers' restarts; closed behind the block.

    Args:
        servers: their URLs.
        within: seconds in which the first server must answer; None: however long that takes.
        is_encrypted: go no further with a server that does not speak TLS.
        options: those of `nats.connect`.

    Raises:
        LogUnavailable: none did, or one says no; the text says where and why.
    """
    client = Client()
    connection = Connection(client)
    opening = FirstConnection(servers)

    async def interrupted() -> None:
        connection.interrupt()

    async def troubled(error: Exception) -> None:
        if opening.is_over:
            connection.refused(error)
            _log.warning("trouble with the connection", action="nats-error", error=repr(error))
        else:
            opening.failed(error)

    settings: Json = {
        "name": "tocsin",
        "skip_subject_validation": True,  # each is made by `subjects`, of names that were checked at the door
        **FOR_EVER,
        "error_cb": troubled,
        "disconnected_cb": interrupted,
        **options,
    }
    try:
        await opening.run(client.connect(servers, **settings), within)
        if is_encrypted and not connection.greeting.get(
            "tls_required"
        ):  # the client only takes up TLS that it asks for
            raise LogUnavailable(
                f"{opening.where}: that server does not speak TLS, and `nats.tls` or a `tls://` URL asks for it"
            )
        yield connection
    finally:
        with suppress(*AWAY):
            await client.close()


def status_of(message: Msg) -> str | None:
    """What a status message says ("404"); None for any other, also for a stored one that has no body."""
    headers = message.headers
    if headers is None or message.data or wire.SEQUENCE in headers:
        return None
    return headers.get(wire.STATUS)


def _stored(subject: str, answer: bytes) -> int:
    fields: Json = from_json(answer)
    error = fields.get("error")
    if error is not None:
        code = error.get("err_code")
        is_servers_fault = error.get("code", 0) >= wire.SERVER_ERRORS and code not in wire.WRONG_LAST_SEQUENCE
        if is_servers_fault or code == wire.ID_IN_PROCESS:
            # Nothing is wrong with what was sent: a full disk, no leader. Work that is done must not be given up for it.
            raise LogUnavailable(f"{subject}: {error.get('description', 'refused')}")
        _refuse(subject, error)
    sequence: int = fields["seq"]
    return sequence


def _refuse(what: str, error: Json) -> NoReturn:
    code, description = error.get("err_code", 0), error.get("description", "refused")
    if code in wire.WRONG_LAST_SEQUENCE:
        raise SequenceConflict(f"{what}: {description}")
    if error.get("code") == wire.UNAVAILABLE:
        raise LogUnavailable(f"{what}: {description}")
    raise JetStreamError(what, description, code)
