"""Precedence of the starts of executions over all other work of a process.

Decisions that wait until a rush is over are acknowledged afterwards, so that a crash only delays them until the redelivery.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeAlias

from nats.aio.msg import Msg

from .... import telemetry
from .pull import NatsDelivery

Postponed: TypeAlias = Any
"""No decision is put off."""
RUSH_SIZE: Final = 32
"""A batch with this number of messages starts a rush."""
QUIET_TIME_S: Final = 0.02
"""The rush is over after this time without a batch; the next batch is requested within it."""
RUSH_LIMIT_S: Final = 1.8
"""Subscriptions and decisions wait at most this long after the start of a rush."""
COUNTED_S: Final = 0.25
"""A subscription that received `RUSH_SIZE` messages within this time may be part of a rush: its batches are small."""
GROWTH_INTERVAL_S: Final = 0.05
"""The time between two measurements of a backlog."""
GROWTH: Final = 4
"""A rush in another process adds as many messages to a backlog between two measurements."""
RUSH_PAUSE_S: Final = 2.0
"""The time after a rush in which no other can start."""


class PriorityGate:
    """The rush of one process, which its low-priority subscriptions wait for.

    If a thousand jobs are due in one second, each finished execution causes two more messages, on its report and on its
    end, and executions that wait to start would wait for them. During a rush of starts, `low_priority` subscriptions
    therefore wait until the rush is over, at most `RUSH_LIMIT_S`. A longer rush is a steady load, which is handled in the
    order of arrival: no subscription waits twice, and a single execution waits for nothing. Decisions that can wait, such
    as the announcement of an execution, wait in the same way (`PostponedWork`).
    """

    def __init__(self, *, patience: float = RUSH_LIMIT_S, recovery: float = RUSH_PAUSE_S) -> None:
        """Use `patience` and `recovery` in seconds in place of the constants."""
        self._patience = patience
        self._recovery = recovery
        self._at_hand = 0
        self._began = self._calm_since = float("-inf")

    @contextmanager
    def rush(self) -> Iterator[None]:
        """Mark the block as a batch of the rush."""
        clock = asyncio.get_running_loop().time
        if not self._at_hand and clock() - self._calm_since >= self._recovery:
            self._began = clock()
        self._at_hand += 1
        try:
            yield
        finally:
            self._at_hand -= 1
            self._calm_since = clock()

    @property
    def is_rush(self) -> bool:
        """Return whether there is a rush."""
        return self._is_on(asyncio.get_running_loop().time())

    async def calm(self) -> None:
        """Wait until the rush is over, or has lasted too long."""
        while self.is_rush:  # noqa: ASYNC110 - the end of a rush is a time of quiet, not an event
            await asyncio.sleep(QUIET_TIME_S)

    def _is_on(self, now: float) -> bool:
        return now < self._began + self._patience and (self._at_hand > 0 or now - self._calm_since < QUIET_TIME_S)


class Turns:
    """The turns of one subscription."""

    def __init__(
        self,
        precedence: PriorityGate,
        *,
        low_priority: bool,
        patience: float = RUSH_LIMIT_S,
        recovery: float = RUSH_PAUSE_S,
    ) -> None:
        """`low_priority` is that of the subscription; `patience` and `recovery` are those of a rush elsewhere."""
        self._precedence = precedence
        self._low_priority = low_priority
        self._patience = patience
        self._recovery = recovery
        self._last_rush = self._counting_since = float("-inf")
        self._counted = 0
        self._waited = 0.0
        """How long the subscription waited for its turn, in seconds."""

    async def come(self) -> None:
        """Wait until the subscription may take messages."""
        if self._low_priority:
            clock = asyncio.get_running_loop().time
            began = clock()
            await self._precedence.calm()
            self._waited = clock() - began

    async def await_starts(self, messages: int, backlog: Callable[[], Awaitable[int]]) -> None:
        """Wait for a rush in other processes before a number of messages is handled.

        While a rush lasts, `backlog`, the number of messages that are not delivered yet, grows. A subscription that
        handled as many messages shortly before is under a steady load, and waits for nothing. The wait for a turn counts:
        the messages may have been there since.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        if began - self._counting_since > COUNTED_S:
            self._counting_since, self._counted = began, 0
        self._counted += messages
        if not self._low_priority or self._counted < RUSH_SIZE:
            return
        if began - self._last_rush >= self._recovery:
            grown = await backlog()
            until = began + self._patience - self._waited
            while clock() < until:
                await asyncio.sleep(GROWTH_INTERVAL_S)
                waiting, grown = grown, await backlog()
                if grown - waiting < GROWTH:
                    break
        self._last_rush = clock()

    def handling(self, messages: int) -> AbstractContextManager[None]:
        """Mark the block as handling a number of messages."""
        is_rush = not self._low_priority and messages >= RUSH_SIZE
        return self._precedence.rush() if is_rush else nullcontext()


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
