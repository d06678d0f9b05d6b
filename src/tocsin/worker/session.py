"""One run of a worker over one connection."""

import asyncio
from typing import Final

from .. import telemetry
from .agent import AgentAnnouncer, AssignedTasks
from .cancellations import Cancellations
from .connection import Connection, Options
from .event_loop import first
from .executor import Executor
from .handler_runner import HandlerRunner, Threads
from .handlers import Handlers
from .held_tasks import HeldTasks
from .outcome import StopReason
from .output import Output
from .shutdown import Shutdown
from .task_pool import Slots, TaskPool

SETTLE_TIMEOUT_S: Final = 2.0
"""The time for stopped handlers to clean up, and for their tasks to be handed back."""

_log = telemetry.get_logger("tocsin.worker")


class Session:
    """A run of a worker, until it is stopped."""

    def __init__(self, options: Options, handlers: Handlers, connection: Connection, shutdown: Shutdown) -> None:
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
        slots = Slots(limit)
        self._pool = TaskPool(executor, self._held_tasks, slots)
        self._channel = connection.agents
        self._cancellations = Cancellations(self._held_tasks, clock, grace=connection.cancel_grace)
        self._assigned = AssignedTasks(self._pool, self._held_tasks, self._cancellations)
        self._agent = AgentAnnouncer(options, handlers, self._held_tasks, slots, connection, limit=limit)

    async def run(self) -> None:
        """Work as a registered agent until a stop is requested, and let handlers finish."""
        name, agent_id = self._options.name, self._agent.agent_id
        async with (
            self._channel.commands(name, agent_id, self._agent.receive),
            self._channel.tasks(name, agent_id, self._assigned.receive),
            self._channel.ends(name, agent_id, self._cancellations.receive),
            self._channel.roll_calls(self._agent.receive_roll_call),
        ):
            await first(self._shutdown.requested.wait(), self._agent.greet())
            try:
                self._agent.check_layout()
                await self._work()
            finally:
                await self._agent.end()

    async def _work(self) -> None:
        background = [asyncio.create_task(loop) for loop in (self._agent.run(), self._output.run())]
        try:
            await first(self._shutdown.requested.wait(), *(asyncio.wait([loop]) for loop in background))
            _log.info("stopping", action="worker-stopping", worker=self._options.name, tasks=len(self._held_tasks))
            self._close()
            immediate, timeout_s = self._shutdown.immediate.wait(), self._options.shutdown_timeout
            await first(self._held_tasks.settled(), immediate, timeout_s=timeout_s)
        finally:  # also if the caller cancels this
            self._close()
            await self._leave()
            self._cancellations.close()
            await _end(*background)

    def _close(self) -> None:
        """Give out no more slots, and set `shutting_down` for handlers."""
        self._shutdown.requested.set()
        self._agent.take_no_more()

    async def _leave(self) -> None:
        for held in self._held_tasks:
            held.stop(StopReason.SHUTDOWN)  # hands its task back
        await first(self._held_tasks.settled(), timeout_s=SETTLE_TIMEOUT_S)
        await first(self._output.drain(), timeout_s=SETTLE_TIMEOUT_S)
        self._pool.abandon()
        self._threads.close()


async def _end(*loops: asyncio.Task[None]) -> None:
    """Cancel loops, and raise the error of a loop that failed before.

    A worker must not only seem to work.
    """
    for loop in loops:
        loop.cancel()
    for result in await asyncio.gather(*loops, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
