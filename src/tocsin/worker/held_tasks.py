"""The deliveries that are in this worker's hands."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future

from ..ports import Delivery
from ..subjects import entity_of
from .flag import Flag
from .outcome import StopReason


class HeldTask:
    """One delivery, from being taken to being settled, and the way to stop its handler from outside."""

    __slots__ = ("_handling", "abandoned", "cancelled", "delivery", "entity", "stopped")

    def __init__(self, delivery: Delivery) -> None:
        """Hold a delivery whose handler does not run yet."""
        self.delivery = delivery
        self.entity = entity_of(delivery.subject)
        """Its execution."""
        self.cancelled = Flag()
        self.stopped: StopReason | None = None
        self.abandoned: Future[object] | None = None
        """What a thread is still at, although nobody waits for it any more."""
        self._handling: asyncio.Task[object] | None = None

    def begin(self) -> None:
        """The handler begins, in the current task: from now on `stop` interrupts it."""
        self._handling = asyncio.current_task()

    def end(self) -> None:
        """The handler is over: nothing interrupts the report."""
        self._handling = None

    def call_off(self) -> bool:
        """Its execution is over; whether its handler is left to end by itself, since it heeds `cancelled`."""
        if self._handling is None or not self.cancelled.is_heeded:
            self.stop(StopReason.CANCELLED)
            return False
        self.stopped = self.stopped or StopReason.CANCELLED
        self.cancelled.set()
        return True

    def stop(self, reason: StopReason) -> None:
        """Let its handler not go on, or not begin; the first reason given stands."""
        self.stopped = self.stopped or reason
        self.cancelled.set()
        if self._handling is not None:
            self._handling.cancel()


class HeldTasks:
    """All of them."""

    def __init__(self) -> None:
        """None yet."""
        self._all: dict[HeldTask, None] = {}  # in the order in which they came, so that all that is done to each is too
        self._none = asyncio.Event()
        self._none.set()

    def add(self, holding: HeldTask) -> None:
        """One more."""
        self._all[holding] = None
        self._none.clear()

    def remove(self, holding: HeldTask) -> None:
        """Settled."""
        self._all.pop(holding, None)
        if not self._all:
            self._none.set()

    async def settled(self) -> None:
        """Until there are none."""
        await self._none.wait()

    def of(self, entity: str) -> list[HeldTask]:
        """Those of one execution."""
        return [holding for holding in self._all if holding.entity == entity]

    def __iter__(self) -> Iterator[HeldTask]:
        """Each, as of now."""
        return iter(tuple(self._all))

    def __len__(self) -> int:
        """How many."""
        return len(self._all)
