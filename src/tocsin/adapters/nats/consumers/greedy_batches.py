"""Batches of the available messages, without waiting for a full batch, and a clean end.

FastStream's batch subscriber fetches until the batch is full or its timeout is over, so that a single message waits for
the whole timeout in every stage. `fetch` of nats-py can leave a request with the server that holds a later message back
until it expires. Both look for the durable first, and give up if the cluster has no leader at that moment. This module
replaces `start` and `stop` of one subscriber: FastStream does not fetch for a subscriber that has a subscription, and
messages are passed to `consume`. Registration, middleware, lifecycle and documentation stay those of FastStream.

A subscriber that is stopped hands back all messages that it does not finish, so that another copy receives them at once
and not after the acknowledgement wait. It waits for its open request: messages that the server sends for it after the
end would be blocked for that time.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nats.aio.msg import Msg

from .... import telemetry
from ....ports import LogUnavailable, NotAllowed
from ..client import wire
from ..client.connection import Connection, FastClient
from ..client.requests import CONNECTION_ERRORS
from ..client.transport import Transport
from ..client.wire import JetStreamError
from .pull import PullInbox

if TYPE_CHECKING:
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

RETRY_INTERVAL_S: Final = 0.5
"""The pause between two requests while the server or its JetStream does not answer."""
ENDED: Final = frozenset({wire.NO_MESSAGES, wire.REQUEST_TIMEOUT})
END_GRACE_S: Final = 1.0
"""The server may report the end of a request this much later."""
HAND_BACK_TIMEOUT_S: Final = 1.0
"""A cancelled fetch may take this long to hand its messages back."""

_log = telemetry.get_logger("tocsin.nats")


class GreedyBatches:
    """The replacement of FastStream's fetching for one subscriber."""

    def __init__(
        self,
        subscriber: "BatchPullStreamSubscriber",
        *,
        finish_within: float,
        fast_client: FastClient = "auto",
    ) -> None:
        """Let a subscriber consume available messages. When it is stopped, it finishes within `finish_within` seconds."""
        subscriber.start = self.start  # type: ignore[method-assign]
        subscriber.stop = self.stop  # type: ignore[method-assign]
        self._subscriber = subscriber
        self._fast_client = fast_client
        self._connection: Connection | None = None
        self._finish_within = finish_within
        self._in_progress: list[Msg] = []
        self._over = asyncio.Event()
        self._over.set()

    @property
    def transport(self) -> Transport:
        """The transport by which the messages arrived."""
        if self._connection is None:
            raise RuntimeError("no message has arrived yet")
        return self._connection.transport

    async def start(self) -> None:
        """Start to consume."""
        subscriber = self._subscriber
        subscriber.subscription = NoSubscription()  # type: ignore[assignment] # FastStream then fetches nothing itself
        await type(subscriber).start(subscriber)
        subscriber.add_task(self.consume)

    async def consume(self) -> None:
        """Fetch and handle messages while the subscriber runs."""
        subscriber = self._subscriber
        connection, stream = Connection(subscriber.connection, fast_client=self._fast_client), subscriber.stream.name
        self._connection = connection
        durable = str(subscriber.extra_options["durable"])
        inbox = PullInbox(connection, stream, durable)
        self._over.clear()
        try:
            await self._await_durable(connection, f"CONSUMER.INFO.{stream}.{durable}")
            await self._consume(inbox)
        finally:
            try:
                await inbox.close()
                await hand_back([*self._in_progress, *inbox.messages])
            finally:
                self._over.set()

    async def stop(self) -> None:
        """Take no more messages, finish those in progress, and hand back the rest."""
        self._subscriber.running = False
        await self._is_over(within=self._finish_within)
        await type(self._subscriber).stop(self._subscriber)
        await self._is_over(within=HAND_BACK_TIMEOUT_S)

    async def _await_durable(self, connection: Connection, durable: str) -> None:
        """Wait until the durable exists.

        It is not created here, because `provision` knows where it must start.
        """
        is_reported = False
        while self._subscriber.running:
            try:
                await connection.manage(durable)
            except NotAllowed:
                return  # this user may still be allowed to fetch
            except LogUnavailable:
                await asyncio.sleep(RETRY_INTERVAL_S)
            except JetStreamError as error:
                if not is_reported:
                    _log.error("durable missing; run `tocsin init`", action="durable-missing", error=str(error))
                is_reported = True
                await asyncio.sleep(RETRY_INTERVAL_S)
            else:
                return

    async def _consume(self, inbox: PullInbox) -> None:
        subscriber, pull = self._subscriber, self._subscriber.pull_sub
        is_open = False
        while subscriber.running:
            try:
                if not is_open:
                    await inbox.open()
                    is_open = True
                messages = await fetch(inbox, pull.batch_size, pull.timeout or RETRY_INTERVAL_S)
            except LogUnavailable:  # no leader, a moving consumer, or a lost connection
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            self._in_progress = messages
            if subscriber.running:
                await subscriber.consume(messages)
                self._in_progress = []

    async def _is_over(self, *, within: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._over.wait()


class NoSubscription:
    """The subscription of a subscriber that gets messages from another part."""

    async def unsubscribe(self) -> None:
        """Do nothing: the part ends by itself."""


async def fetch(inbox: PullInbox, limit: int, wait: float, *, max_bytes: int = 0) -> list[Msg]:
    """Send a request and wait until it is full, or the server ends it."""
    inbox.statuses.clear()
    if (missing := limit - len(inbox.messages)) > 0:
        await inbox.request(missing, wait=wait, is_greedy=True, max_bytes=max_bytes)
    deadline = asyncio.get_running_loop().time() + wait + END_GRACE_S
    while len(inbox.messages) < limit and not inbox.statuses:
        remaining_s = deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0 or not await inbox.wait(remaining_s, beyond=len(inbox.messages)):
            break
    messages = [inbox.messages.popleft() for _ in range(min(limit, len(inbox.messages)))]
    if not messages and not set(inbox.statuses) <= ENDED:
        raise LogUnavailable(f"the server ended the request: {', '.join(inbox.statuses)}")
    return messages


async def hand_back(messages: list[Msg]) -> None:
    """Hand unacknowledged messages back, so that another copy receives them at once."""
    for message in messages:
        if not message.is_acked:
            with suppress(*CONNECTION_ERRORS):
                await message.nak()
