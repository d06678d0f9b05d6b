"""Batches of whatever is there, without waiting to fill them, and an end that leaves nothing behind.

FastStream's batch subscriber keeps fetching until the batch is full or its timeout is over, so that a lone message waits
the whole timeout in every stage; nats-py's `fetch` can leave a request with the server that holds a later message back
until it expires; and both ask after the durable first, and give up when the cluster has no leader at that moment. This
replaces the one private method that begins to fetch, on one subscriber, and `stop`, which waits for what it began; nothing
else: middleware, lifecycle and documentation stay FastStream's. `tests/conformance/test_greedy_batches.py` fails when they
move.

A subscriber that is stopped hands back all that it does not finish, so that a successor has it at once and not after the
acknowledgement wait. That takes as long as the request that is open: what the server sends for it while nobody listens any
more would be away for that wait.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from nats.aio.msg import Msg

from ....ports import LogUnavailable, NotAllowed
from ..client import wire
from ..client.connection import TROUBLE, Connection, JetStreamError
from .priority_gate import Turns
from .pull import PullInbox

if TYPE_CHECKING:
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

REACHED_FOR: Final = "_create_subscription"
PAUSE: Final = 0.5
"""Seconds between two requests while the server or its JetStream does not answer."""
ENDED: Final = frozenset({wire.NO_MESSAGES, wire.REQUEST_TIMEOUT})
GRACE: Final = 1.0
"""Seconds that the server's own word on the end of a request may take."""
HANDING_BACK: Final = 1.0
"""Seconds for a fetch that was cancelled to hand back what it held."""

_log = structlog.get_logger("tocsin.nats")


def make_greedy(subscriber: "BatchPullStreamSubscriber", *, finish_within: float, turns: Turns) -> None:
    """Have a subscriber consume what is there, in its turn, and when it is stopped finish that within so many seconds."""
    if not hasattr(type(subscriber), REACHED_FOR):
        raise TypeError(f"this version of FastStream has no {type(subscriber).__name__}.{REACHED_FOR}")
    greedy = _Greedy(subscriber, finish_within, turns)
    setattr(subscriber, REACHED_FOR, greedy.begin)
    subscriber.stop = greedy.stop  # type: ignore[method-assign]


class _Greedy:
    """What one subscriber does in place of FastStream's fetching."""

    def __init__(self, subscriber: "BatchPullStreamSubscriber", finish_within: float, turns: Turns) -> None:
        self._subscriber = subscriber
        self._turns = turns
        self._finish_within = finish_within
        self._handled: list[Msg] = []
        self._over = asyncio.Event()
        self._over.set()

    async def begin(self) -> None:
        """Have it consume from now on."""
        self._subscriber.add_task(self.consume)

    async def consume(self) -> None:
        """Fetch and handle for as long as the subscriber runs."""
        subscriber = self._subscriber
        connection, stream = Connection(subscriber.connection), subscriber.stream.name
        durable = str(subscriber.extra_options["durable"])
        inbox = PullInbox(connection, stream, durable)
        self._over.clear()
        try:
            await self._find(connection, f"CONSUMER.INFO.{stream}.{durable}")
            await self._consume(inbox)
        finally:
            try:
                await inbox.close()
                await _hand_back([*self._handled, *inbox.messages])
            finally:
                self._over.set()

    async def stop(self) -> None:
        """Take nothing more, and finish what is at hand; hand back whatever is not finished in time."""
        self._subscriber.running = False
        await self._is_over(within=self._finish_within)
        await type(self._subscriber).stop(self._subscriber)
        await self._is_over(within=HANDING_BACK)

    async def _find(self, connection: Connection, durable: str) -> None:
        """Wait until the durable is there. It is not made here: where it has to begin is for `provision` to know."""
        is_missed = False
        while self._subscriber.running:
            try:
                await connection.manage(durable)
            except NotAllowed:
                return  # and may be fetched from all the same
            except LogUnavailable:
                await asyncio.sleep(PAUSE)
            except JetStreamError as error:
                if not is_missed:
                    _log.error("a durable is missing: run `tocsin init`", action="durable-missing", error=str(error))
                is_missed = True
                await asyncio.sleep(PAUSE)
            else:
                return

    async def _consume(self, inbox: PullInbox) -> None:
        subscriber = self._subscriber
        wait = subscriber.pull_sub.timeout or PAUSE
        is_open = False
        while await self._goes_on():
            try:
                if not is_open:
                    await inbox.open()
                    is_open = True
                messages = await _whatever_is_there(inbox, subscriber.pull_sub.batch_size, wait)
            except LogUnavailable:  # no leader, a consumer on the move, a lost connection
                await asyncio.sleep(PAUSE)
                continue
            self._handled = messages
            if subscriber.running:
                with self._turns.handling(len(messages)):
                    await subscriber.consume(messages)
                self._handled = []

    async def _goes_on(self) -> bool:
        """Whether it runs when its turn comes."""
        await self._turns.come()
        return self._subscriber.running

    async def _is_over(self, *, within: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._over.wait()


async def _whatever_is_there(inbox: PullInbox, limit: int, wait: float) -> list[Msg]:
    """One request, seen through to its end: until it is full, or the server says no more."""
    inbox.statuses.clear()
    await inbox.ask(limit - len(inbox.messages), wait=wait, is_greedy=True)
    deadline = asyncio.get_running_loop().time() + wait + GRACE
    while len(inbox.messages) < limit and not inbox.statuses:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0 or not await inbox.wait(left, beyond=len(inbox.messages)):
            break
    messages = [inbox.messages.popleft() for _ in range(min(limit, len(inbox.messages)))]
    if not messages and not set(inbox.statuses) <= ENDED:
        raise LogUnavailable(f"the request was not served: {', '.join(inbox.statuses)}")
    return messages


async def _hand_back(messages: list[Msg]) -> None:
    """Let another copy have at once what nobody here has dealt with."""
    for message in messages:
        if not message.is_acked:
            with suppress(*TROUBLE):
                await message.nak()
