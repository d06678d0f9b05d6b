"""Batches of whatever is there, without waiting to fill them.

FastStream's batch subscriber keeps fetching until the batch is full or its timeout is over, so that a lone message waits
the whole timeout in every stage; and nats-py's `fetch` can leave a request with the server that holds a later message back
until it expires. This replaces the one private method that fetches, on one subscriber, and nothing else: middleware,
lifecycle and documentation stay FastStream's. `tests/conformance/test_greedy_batches.py` fails when it moves.
"""

import asyncio
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Final

from nats.aio.msg import Msg

from ...ports import LogUnavailable
from . import wire
from .connection import TROUBLE, Connection
from .pull import PullInbox

if TYPE_CHECKING:
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

REACHED_FOR: Final = "_consume_pull"
PAUSE: Final = 0.5
"""Seconds between two requests while the server or its JetStream does not answer."""
ENDED: Final = frozenset({wire.NO_MESSAGES, wire.REQUEST_TIMEOUT})
GRACE: Final = 1.0
"""Seconds that the server's own word on the end of a request may take."""


def make_greedy(subscriber: "BatchPullStreamSubscriber") -> None:
    """Have a subscriber consume what is there, at once."""
    if not hasattr(type(subscriber), REACHED_FOR):
        raise TypeError(f"this version of FastStream has no {type(subscriber).__name__}.{REACHED_FOR}")
    setattr(subscriber, REACHED_FOR, MethodType(_consume_pull, subscriber))


async def _consume_pull(self: "BatchPullStreamSubscriber") -> None:
    inbox = PullInbox(Connection(self.connection), self.stream.name, str(self.extra_options["durable"]))
    wait = self.pull_sub.timeout or PAUSE
    is_open = False
    try:
        while self.running:
            try:
                if not is_open:
                    await inbox.open()
                    is_open = True
                messages = await _whatever_is_there(inbox, self.pull_sub.batch_size, wait)
            except LogUnavailable:  # no leader, a consumer on the move, a lost connection
                await asyncio.sleep(PAUSE)
                continue
            if messages and self.running:
                await self.consume(messages)
            else:
                await _hand_back(messages)
    finally:
        await inbox.close()
        await _hand_back([*inbox.messages])


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
    """Let another copy have at once what nobody here will handle."""
    for message in messages:
        with suppress(*TROUBLE):
            await message.nak()
