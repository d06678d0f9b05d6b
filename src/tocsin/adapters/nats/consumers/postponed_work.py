"""Decisions of one subscription that wait until a rush is over.

Their messages are acknowledged afterwards, so that a crash only delays them until the redelivery.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from nats.aio.msg import Msg

from .... import telemetry
from ....engine.delivery_policy import Postponed
from .delivery import NatsDelivery
from .priority import PriorityGate

MAX_POSTPONED: Final = 4_096
"""The number of messages that may wait; with more, all are finished at once."""

_log = telemetry.get_logger("tocsin.nats")


class PostponedWork:
    """The waiting messages of one subscription, in order."""

    def __init__(self, gate: PriorityGate, finish: Callable[[Postponed], Awaitable[None]]) -> None:
        """`finish`: decides on messages and settles them."""
        self._gate = gate
        self._finish = finish
        self._waiting: deque[Postponed] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_urgent = asyncio.Event()

    @property
    def messages(self) -> list[Msg]:
        """The messages that are not settled."""
        deliveries = (delivery for part in self._waiting for delivery, _ in part.items)
        return [delivery.message for delivery in deliveries if isinstance(delivery, NatsDelivery)]

    async def add(self, postponed: Postponed) -> None:
        """Finish messages after the rush."""
        self._waiting.append(postponed)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        if sum(len(part.items) for part in self._waiting) > MAX_POSTPONED:
            await self.finish()

    async def finish_before(self, keys: Callable[[], Collection[object]]) -> None:
        """Finish all messages now if one of them has one of these ordering keys."""
        if self._waiting and any(not part.keys.isdisjoint(keys()) for part in self._waiting):
            await self.finish()

    async def finish(self) -> None:
        """Finish all messages now."""
        if self._task is not None:
            self._is_urgent.set()
            await self._task

    async def _run(self) -> None:
        calm = asyncio.ensure_future(self._gate.calm())
        urgent = asyncio.ensure_future(self._is_urgent.wait())
        try:
            await asyncio.wait((calm, urgent), return_when=asyncio.FIRST_COMPLETED)
            while self._waiting:
                try:
                    await self._finish(self._waiting[0])
                except Exception as error:  # noqa: BLE001 - the log delivers the messages again
                    _log.error("messages not finished", action="postponed-failed", exc_info=error)
                self._waiting.popleft()
        finally:
            calm.cancel()
            urgent.cancel()
            self._is_urgent.clear()
            self._task = None
