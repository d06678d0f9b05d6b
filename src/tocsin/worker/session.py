"""One run of a worker over one connection.

Its parts, in the order of the flow, and their shutdown.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from .. import telemetry
from .agent import AgentAnnouncer, AssignedTasks
from .cancellations import Cancellations
from .connection import Connection, Options
from .executor import Executor
from .handler_runner import HandlerRunner, Threads
from .handlers import Handlers
from .held_tasks import Heartbeat, HeldTasks
from .outcome import StopReason
from .output import Output
from .shutdown import Shutdown
from .task_pool import TAKE_WAIT_S, Intake, Slots, TaskPool

SETTLE_TIMEOUT_S: Final = 2.0
"""The time for stopped handlers to clean up, and for their tasks to be handed back."""

_log = telemetry.get_logger("tocsin.worker")


class Session:
    """A run of a worker, until it is stopped."""

    def __init__(self, options: Options, handlers: Handlers, connection: Connection, shutdown: Shutdown) -> None:
        """Create the parts.

        Raises:
            ValueError: the connection lacks one of the queues.
        """
        known = {*connection.queues, *connection.assigned}
        if missing := [name for name in options.queues if name not in known]:
            raise ValueError(f"the connection has no queue {missing[0]!r}")
        if connection.assigned and connection.agents is None:
            raise ValueError("tasks cannot be assigned to a worker without a channel of agents")
        clock = connection.clock
        self._options = options
        self._shutdown = shutdown
        self._held_tasks = HeldTasks()
        self._threads = Threads()
        self._output = Output(connection.log, clock)
        runner = HandlerRunner(
            options.name, clock, self._threads, shutdown.requested, self._output, secrets=options.secrets
        )
        executor = Executor(connection.log, handlers, runner, clock, worker=options.name)
        limit = connection.concurrency or options.concurrency
        slots = Slots(limit, shutdown.requested)
        self._pool = TaskPool(executor, self._held_tasks, slots)
        self._channel = connection.agents
        self._cancellations = Cancellations(connection.log, self._held_tasks, clock, grace=connection.cancel_grace)
        self._assigned = AssignedTasks(self._pool, self._held_tasks, self._cancellations)
        self._agent = (
            None
            if connection.agents is None
            else AgentAnnouncer(
                options,
                handlers,
                self._held_tasks,
                slots,
                connection.agents,
                clock,
                limit=limit,
                version=connection.version,
            )
        )
        self._intakes = [
            Intake(name, connection.queues[name], self._pool, clock)
            for name in options.queues
            if name not in connection.assigned
        ]
        self._heartbeat = Heartbeat(self._held_tasks, clock, ack_wait=connection.ack_wait)

    async def run(self) -> None:
        """Work until a stop is requested, registered as an agent if the connection allows it.

        Then take no more tasks, let handlers finish, and stop the rest.
        """
        if self._agent is None or self._channel is None:
            await self._work([])
            return
        name, agent_id = self._options.name, self._agent.agent_id
        async with (
            self._channel.commands(name, agent_id, self._agent.receive),
            self._channel.tasks(name, agent_id, self._assigned.receive),
            self._channel.roll_calls(self._agent.receive_roll_call),
        ):
            await _first(self._shutdown.requested.wait(), self._agent.greet())
            try:
                await self._work([_start(self._agent.run())])
            finally:
                await self._agent.end()

    async def _work(self, announcing: list[asyncio.Task[None]]) -> None:
        loops = (self._heartbeat.run(), self._cancellations.run(), self._output.run())
        background = [*map(_start, loops), *announcing]
        intakes = [_start(intake.run()) for intake in self._intakes]
        try:
            await _first(self._shutdown.requested.wait(), *map(_ended, (*background, *intakes)))
            _log.info("stopping", action="worker-stopping", worker=self._options.name, tasks=len(self._held_tasks))
            self._close()
            immediate, timeout_s = self._shutdown.immediate.wait(), self._options.shutdown_timeout
            await _first(self._all_settled(intakes), immediate, timeout_s=timeout_s)
        finally:  # also if the caller cancels this
            self._close()
            await self._leave(intakes)
            await _end(*background, *intakes)

    def _close(self) -> None:
        """Give out no more slots, and set `shutting_down` for handlers."""
        self._shutdown.requested.set()
        if self._agent is not None:
            self._agent.take_no_more()
        self._pool.slots.wake()

    async def _leave(self, intakes: list[asyncio.Task[None]]) -> None:
        """Stop handlers and hand their tasks back.

        The intakes end before, so that this worker does not take the tasks again.
        """
        if intakes:
            await _first(asyncio.wait(intakes), timeout_s=2 * TAKE_WAIT_S)
        self._pool.stop(StopReason.SHUTDOWN)
        await _first(self._all_settled(intakes), timeout_s=SETTLE_TIMEOUT_S)
        await _first(self._output.drain(), timeout_s=SETTLE_TIMEOUT_S)
        self._pool.abandon()
        self._threads.close()

    async def _all_settled(self, intakes: list[asyncio.Task[None]]) -> None:
        if intakes:
            await asyncio.wait(intakes)
        await self._held_tasks.settled()


def _start(loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(loop)


async def _ended(loop: asyncio.Task[None]) -> None:
    await asyncio.wait([loop])


async def _end(*loops: asyncio.Task[None]) -> None:
    """Cancel loops, and raise the error of a loop that failed before.

    A worker must not only seem to work.
    """
    for loop in loops:
        loop.cancel()
    for result in await asyncio.gather(*loops, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _first(*awaitables: Awaitable[object], timeout_s: float | None = None) -> None:
    """Wait for the first result, at most `timeout_s` seconds, and cancel the others."""
    waiting = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
