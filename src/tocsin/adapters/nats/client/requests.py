"""The pending requests of one client, each waiting for its own replies.

All replies arrive in one wildcard inbox, and the last token of a reply's subject names its request. This costs less per
call than `Client.request`: the token is a counter, and one timer serves all requests. It also lets a reply consist of
many messages, as the reply of a batched direct get does, and lets many requests share one future.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nats import errors
from nats.aio.client import Client

from ....ports import LogUnavailable, NoResponder, NotAllowed, RequestRefused
from . import wire
from .transport import Outgoing, Transport
from .wire import Reply, status_of

MAX_WIRE_SUBJECT_BYTES: Final = 3_900
"""Bytes of a subject. The server's line for a command has 4,096, with the verb, the reply subject and the sizes."""
_SHORT_SUBJECT: Final = MAX_WIRE_SUBJECT_BYTES // 4
"""Characters of which no subject is too long, in any script."""
SWEEP_INTERVAL_S: Final = 0.25
"""The interval at which expired requests are ended."""
CONNECTION_ERRORS: Final = (
    errors.ConnectionClosedError,
    errors.ConnectionDrainingError,
    errors.ConnectionReconnectingError,
    errors.OutboundBufferLimitError,
    errors.StaleConnectionError,
    errors.TimeoutError,
)
"""Errors of the connection, which say nothing about the request itself."""

_INDEX: Final = "_"
"""Separates the number of a request from the index of one of its messages."""
_VIOLATION: Final = re.compile(r'permissions violation for (?P<verb>publish|subscription) to "(?P<subject>[^"]*)"')


def _denied(subject: str) -> NotAllowed:
    return NotAllowed(f"{subject}: this NATS user may not publish there", subject=subject)


class _Single:
    """A request until its end. `receive` returns whether a reply is the last."""

    __slots__ = ("_receive", "_subject", "answer", "until")

    def __init__(self, subject: str, receive: Callable[[Reply], bool], until: float) -> None:
        self._subject = subject
        self._receive = receive
        self.until = until
        """The loop's time at which the request expires."""
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def receive(self, index: str, reply: Reply) -> None:
        del index
        if not self.answer.done() and self._receive(reply):
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def deny(self, subject: str) -> None:
        """Fail if the server denies this subject; the denial has lower-case letters."""
        if self._subject.lower() == subject:
            self.fail(_denied(self._subject))


class _Wave:
    """Several messages with one reply each, and one future for all."""

    __slots__ = ("_left", "_messages", "answers", "end", "until")

    def __init__(self, messages: Sequence[Outgoing], until: float) -> None:
        self._messages = messages
        self._left = len(messages)
        self.answers: list[Reply | Exception | None] = [None] * len(messages)
        self.until = until
        self.end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def receive(self, index: str, reply: Reply) -> None:
        self._settle(int(index), reply)

    def fail(self, error: Exception) -> None:
        """End the wave; the messages without a reply have failed."""
        if not self.end.done():
            self.end.set_result(error)

    def deny(self, subject: str) -> None:
        for number, message in enumerate(self._messages):
            if message.subject.lower() == subject:
                self._settle(number, _denied(message.subject))

    def _settle(self, number: int, answer: Reply | Exception) -> None:
        if self.answers[number] is None:
            self.answers[number] = answer
            self._left -= 1
            if not self._left and not self.end.done():
                self.end.set_result(None)


class Requests:
    """The pending requests of one client."""

    def __init__(self, client: Client, transport: Transport, timeout: float) -> None:
        """`timeout` (seconds) is that of each request."""
        self.client = client
        self.transport = transport
        self._timeout = timeout
        self._inbox = ""  # created after the client is connected, because only then it knows its prefix
        self._is_subscribed = False
        self._tokens = itertools.count(1)
        self._pending: dict[str, _Single | _Wave] = {}
        """Pending requests by token, in the order of their expiry."""
        self._sweeper: asyncio.TimerHandle | None = None
        self.is_abandoned = False
        """No reply can come any more."""

    def abandon(self) -> None:
        """Fail every request, pending or later, because nothing reads the replies any more."""
        self.is_abandoned = True
        for request in self._pending.values():
            request.fail(errors.ConnectionClosedError())

    def interrupt(self) -> None:
        """Fail every pending request, because the connection and the replies were lost."""
        for request in self._pending.values():
            request.fail(errors.StaleConnectionError())

    def on_permission_error(self, error: Exception) -> None:
        """Fail the requests that a permission error of the server is about.

        Without it, each of them would wait until it expires.
        """
        violation = _VIOLATION.search(str(error))
        if violation is None:
            return
        subject = violation["subject"]  # the client lowers the text of the error
        for request in self._pending.values():
            if violation["verb"] == "subscription":
                inbox = f"{self._inbox}*"
                reason = f"this NATS user may not subscribe to {inbox}: set `nats.inbox_prefix` to the prefix that it may use"
                request.fail(NotAllowed(reason, subject=inbox, remedy="nats.inbox_prefix"))
            else:
                request.deny(subject)

    async def ask(self, message: Outgoing, *, after: Sequence[Outgoing] = ()) -> Reply:
        """Send a message after others that have no replies; return its reply."""
        return await self._ask(message, lambda _: True, after)

    async def ask_many(self, message: Outgoing) -> tuple[list[Reply], Reply]:
        """Send a message; return its replies, and the status message that ends them."""
        replies: list[Reply] = []

        def receive(reply: Reply) -> bool:
            if status_of(reply) is not None:
                return True
            replies.append(reply)
            return False

        end = await self._ask(message, receive)
        return replies, end

    async def request_each(self, messages: Sequence[Outgoing]) -> list[Reply | LogUnavailable]:
        """Send several messages in one write; return the reply or the error of each."""
        if not messages:  # no reply would end the wait
            return []
        _check_subjects(messages)
        loop = asyncio.get_running_loop()
        wave = _Wave(messages, loop.time() + self._timeout)
        token = self._register(wave, loop)
        error: Exception | None
        try:
            if not self._is_subscribed:
                await self._listen()
            reply = f"{self._inbox}{token}{_INDEX}"
            await self.transport.send(
                [Outgoing(m.subject, m.body, m.headers, f"{reply}{number}") for number, m in enumerate(messages)]
            )
            error = await wave.end
        except CONNECTION_ERRORS as failure:
            error = failure
        finally:
            del self._pending[token]
        return [_outcome(m.subject, a or error) for m, a in zip(messages, wave.answers, strict=True)]

    async def _ask(self, message: Outgoing, receive: Callable[[Reply], bool], after: Sequence[Outgoing] = ()) -> Reply:
        _check_subjects([*after, message])
        loop = asyncio.get_running_loop()
        request = _Single(message.subject, receive, loop.time() + self._timeout)
        token = self._register(request, loop)
        try:
            if not self._is_subscribed:
                await self._listen()
            await self.transport.send([*after, message._replace(reply=self._inbox + token)])
            answer = await request.answer
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{message.subject}: {error!r}") from error
        finally:
            del self._pending[token]
        if status_of(answer) == wire.NO_RESPONDERS:
            raise NoResponder(message.subject)
        return answer

    def _register(self, request: _Single | _Wave, loop: asyncio.AbstractEventLoop) -> str:
        token = str(next(self._tokens))
        self._pending[token] = request
        if self.is_abandoned:
            request.fail(errors.ConnectionClosedError())
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep, loop)
        return token

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail expired requests.

        One timer serves all requests, because a timer for each would cost more than the request itself.
        """
        now = loop.time()
        for request in self._pending.values():
            if request.until > now:
                break
            request.fail(errors.TimeoutError())
        self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep, loop) if self._pending else None

    async def _listen(self) -> None:
        # The subscription is in the client's buffer before this yields, so no request overtakes it.
        self._is_subscribed = True
        self._inbox = self._inbox or f"{self.client.new_inbox()}."
        try:
            await self.transport.listen(f"{self._inbox}*", self._receive)
        except BaseException:
            self._is_subscribed = False
            raise

    def _receive(self, subject: str, reply: str, body: bytes, headers: Mapping[str, str] | None) -> None:
        del reply
        token, _, index = subject[len(self._inbox) :].partition(_INDEX)
        request = self._pending.get(token)
        if request is not None:
            request.receive(index, Reply(body, headers))


def _check_subjects(messages: Sequence[Outgoing]) -> None:
    """Reject messages with a subject that the server would answer by ending the connection."""
    for message in messages:
        if len(message.subject) > _SHORT_SUBJECT and len(message.subject.encode()) > MAX_WIRE_SUBJECT_BYTES:
            reason = f"a subject has at most {MAX_WIRE_SUBJECT_BYTES:,} bytes on the wire"
            raise RequestRefused(f"{message.subject[:60]}…: {reason}", reason)


def _outcome(subject: str, answer: Reply | Exception | None) -> Reply | LogUnavailable:
    if isinstance(answer, Reply):
        if answer.headers and status_of(answer) == wire.NO_RESPONDERS:
            return NoResponder(subject)
        return answer
    return answer if isinstance(answer, LogUnavailable) else LogUnavailable(f"{subject}: {answer!r}")
