"""A worker at work, over one connection: the parts that run, in the order of the flow, and how they end."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from .cancellations import Cancellations
from .connection import Connection
from .executor import Executor
from .handler_runner import HandlerRunner
from .handlers import Handlers
from .heartbeat import Heartbeat
from .held_tasks import HeldTasks
from .intake import WAIT, Intake
from .logger import log
from .options import Options
from .outcome import StopReason
from .shutdown import Shutdown
from .slots import Slots
from .task_pool import TaskPool
from .threads import Threads

SETTLE_WITHIN: Final = 2.0
"""Seconds for handlers that were stopped to clean up, and for their tasks to be handed back."""


class Session:
    """Runs until it is asked to stop."""

    def __init__(self, options: Options, handlers: Handlers, connection: Connection, shutdown: Shutdown) -> None:
        """Put the parts together.

        Raises:
            ValueError: the connection lacks one of the queues.
        """
        if missing := [name for name in options.queues if name not in connection.queues]:
            raise ValueError(f"the connection has no queue {missing[0]!r}")
        clock = connection.clock
        self._options = options
        self._shutdown = shutdown
        self._holdings = HeldTasks()
        self._threads = Threads()
        invocations = HandlerRunner(options.name, clock, self._threads, shutdown.asked)
        executor = Executor(connection.log, handlers, invocations, clock, worker=options.name)
        self._crew = TaskPool(executor, self._holdings, Slots(options.concurrency, shutdown.asked))
        self._intakes = [Intake(name, connection.queues[name], self._crew, clock) for name in options.queues]
        self._heartbeat = Heartbeat(self._holdings, clock, ack_wait=connection.ack_wait)
        self._cancellations = Cancellations(connection.log, self._holdings, clock, grace=connection.cancel_grace)

    async def run(self) -> None:
        """Work until asked to stop, then end: take nothing more, let handlers finish, stop those that do not."""
        keeping = [_started(self._heartbeat.run()), _started(self._cancellations.run())]
        taking = [_started(intake.run()) for intake in self._intakes]
        try:
            await _first(self._shutdown.asked.wait(), *map(_ended, (*keeping, *taking)))
            log.info("stopping", action="worker-stopping", worker=self._options.name, tasks=len(self._holdings))
            self._close()
            hurried, within = self._shutdown.hurried.wait(), self._options.shutdown_timeout
            await _first(self._all_settled(taking), hurried, within=within)
        finally:  # at any time, where whoever called cancels this
            self._close()
            await self._leave(taking)
            await _end(*keeping, *taking)

    def _close(self) -> None:
        """Give out no more slots, and let handlers know why."""
        self._shutdown.asked.set()
        self._crew.slots.wake()

    async def _leave(self, taking: list[asyncio.Task[None]]) -> None:
        """Stop handlers and hand their tasks back, once nothing here would take them again."""
        await _first(asyncio.wait(taking), within=2 * WAIT)
        self._crew.stop(StopReason.SHUTDOWN)
        await _first(self._all_settled(taking), within=SETTLE_WITHIN)
        self._crew.abandon()
        self._threads.close()

    async def _all_settled(self, taking: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(taking)
        await self._holdings.settled()


def _started(loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(loop)


async def _ended(loop: asyncio.Task[None]) -> None:
    await asyncio.wait([loop])


async def _end(*loops: asyncio.Task[None]) -> None:
    """Cancel loops; one that broke before tells why, since a worker that only seems to work is worse than none."""
    for loop in loops:
        loop.cancel()
    for ending in await asyncio.gather(*loops, return_exceptions=True):
        if isinstance(ending, Exception):
            raise ending


async def _first(*awaitables: Awaitable[object], within: float | None = None) -> None:
    """Until the first is done, or `within` seconds are over; the others are given up."""
    waiting = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(waiting, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
