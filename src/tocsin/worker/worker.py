"""What users see of a worker: make one, register handlers, run it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, TypeVar

from . import options as options_
from . import signals
from .connection import Connect, Connection
from .handlers import Handlers
from .logger import log
from .options import Options
from .session import Session
from .shutdown import Shutdown
from .signatures import check_name

F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Runs the tasks of some queues with the functions registered on it.

    Each task runs at least once: work is repeated if this process dies before the report is stored, never because an
    acknowledgement was lost. A handler that must not act twice uses `context.execution_id`, or `context.fence`.
    """

    connect_by_default: ClassVar[Connect | None] = None
    """Set by `import tocsin`, so that the SDK itself knows no transport."""

    def __init__(
        self,
        queues: Sequence[str] = ("default",),
        *,
        concurrency: int = 10,
        shutdown_timeout: float = 30.0,
        name: str | None = None,
        nats_url: str | None = None,
        connect: Connect | None = None,
    ) -> None:
        """Configure a worker; nothing is connected yet.

        Args:
            queues: the queues to take tasks from.
            concurrency: how many tasks run at the same time, over all queues.
            shutdown_timeout: seconds that handlers may go on once the worker is asked to stop.
            name: unique among all workers; by default made of host, process and a number.
            nats_url: where the log is; by default as the settings say (`TOCSIN_NATS_URL`).
            connect: opens the connection instead of the default, e.g. to the in-memory log.

        Raises:
            ValueError: an option is out of its range.
        """
        self.options: Options = options_.read(
            queues, concurrency=concurrency, shutdown_timeout=shutdown_timeout, name=name, nats_url=nats_url
        )
        self._connect = connect
        self._handlers = Handlers()
        self._shutdown = Shutdown()
        self._opening: asyncio.Task[Any] | None = None

    def task(self, function: str) -> Callable[[F], F]:
        """Register the decorated function as what runs `function`, the name that job definitions use.

        Its first parameter is the `Context`; further ones are filled from the task's input by name (and its args in
        order), and then must fit it. It returns any JSON value up to 64 KiB, or None.

        An async function runs in the loop and must not block it: that would stop the heartbeats of all tasks. A sync
        one runs in a thread. When its time is over an async one is cancelled; a thread cannot be, so the attempt is
        reported `timed_out`, the thread goes on, and keeps its slot until it ends: long ones look at
        `context.cancelled`.

        When its execution is called off it is interrupted at once, unless it has looked at `context.cancelled`: then it
        may end by itself first, within `worker.cancel_grace` (10 s).

        Raises:
            InvalidHandlerError: it is a generator, or takes no context.
            ValueError: another function is registered under this name.
        """
        check_name(function)

        def register(handler: F) -> F:
            self._handlers.add(function, handler)
            return handler

        return register

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then finish what runs within `shutdown_timeout`; at a second signal stop it."""
        asyncio.run(self._run())

    async def serve(self, connection: Connection | None = None) -> None:
        """Work inside a running loop until `stop`, or until cancelled, over a connection of its own or a given one."""
        self._shutdown = shutdown = Shutdown()
        if connection is not None:
            await self._work(connection, shutdown)
            return
        async with AsyncExitStack() as stack:
            if (opened := await self._open(stack, shutdown)) is not None:
                await self._work(opened, shutdown)

    def stop(self) -> None:
        """Ask it to stop, from inside its loop; asked twice it stops every handler at once."""
        self._shutdown.ask()
        if self._opening is not None:
            self._opening.cancel()

    async def _run(self) -> None:
        with signals.handled(self.stop):
            await self.serve()

    async def _open(self, stack: AsyncExitStack, shutdown: Shutdown) -> Connection | None:
        """Connect, however long that takes; None: asked to stop before it succeeded."""
        self._opening = opening = asyncio.current_task()
        try:
            return await stack.enter_async_context(self._connector()(self.options))
        except asyncio.CancelledError:
            if opening is None or not shutdown.asked.is_set():
                raise
            opening.uncancel()
            return None
        finally:
            self._opening = None

    async def _work(self, connection: Connection, shutdown: Shutdown) -> None:
        named = {"worker": self.options.name, "queues": self.options.queues}
        log.info("working", action="worker-started", functions=list(self._handlers), **named)
        await Session(self.options, self._handlers, connection, shutdown).run()
        log.info("stopped", action="worker-stopped", **named)

    def _connector(self) -> Connect:
        connect = self._connect or type(self).connect_by_default
        if connect is None:
            raise RuntimeError("no way to connect is known: write `from tocsin import Worker`, or give `connect`")
        return connect
