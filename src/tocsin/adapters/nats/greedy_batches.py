"""Batches of whatever is there, without waiting to fill them.

FastStream's batch subscriber keeps fetching until the batch is full or its timeout is over, so that a lone message waits
the whole timeout in every stage. This replaces the one private method that does so, on one subscriber, and nothing else:
middleware, lifecycle and documentation stay FastStream's. `tests/conformance/test_greedy_batches.py` fails when it moves.
"""

import asyncio
from types import MethodType
from typing import TYPE_CHECKING, Final

from nats.errors import ConnectionClosedError, Error
from nats.errors import TimeoutError as NothingThere
from nats.js.errors import Error as JetStreamError

if TYPE_CHECKING:
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

REACHED_FOR: Final = "_consume_pull"
PAUSE: Final = 0.5
"""Seconds between two attempts to fetch while the server or its JetStream does not answer."""


def make_greedy(subscriber: "BatchPullStreamSubscriber") -> None:
    """Have a subscriber consume what is there, at once."""
    if not hasattr(type(subscriber), REACHED_FOR):
        raise TypeError(f"this version of FastStream has no {type(subscriber).__name__}.{REACHED_FOR}")
    setattr(subscriber, REACHED_FOR, MethodType(_consume_pull, subscriber))


async def _consume_pull(self: "BatchPullStreamSubscriber") -> None:
    while self.running:
        if self.subscription is None:
            return
        try:
            messages = await self.subscription.fetch(self.pull_sub.batch_size, timeout=self.pull_sub.timeout)
        except NothingThere:
            continue
        except ConnectionClosedError:
            return
        except (Error, JetStreamError, OSError):  # no leader, a consumer on the move, a lost connection
            await asyncio.sleep(PAUSE)
            continue
        if messages and self.running:
            await self.consume(messages)
