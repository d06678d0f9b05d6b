"""The worker that users create, register handlers on, and run."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from .. import telemetry
from ..domain import agent
from ..domain.errors import TocsinError
from ..domain.secret_reference import check_allowed
from .connection import Connect, Connection, Options, refuse_text, unique_name
from .event_loop import ending_loop, running_loop
from .handlers import BuiltinFunction, Handlers, check_name
from .session import Session
from .shutdown import Shutdown, stop_signals

F = TypeVar("F", bound=Callable[..., Any])

_log = telemetry.get_logger("tocsin.worker")


class NoConnectionError(TocsinError, RuntimeError):
    """The worker has no function that opens its connection."""

    code = "worker-has-no-connection"


class Worker:
    """A process that takes tasks from queues and runs registered handlers.

        worker = Worker(queues=["mail"])

        @worker.task("mail/send")
        async def send(context: Context, to: str) -> None:
            context.logger.info("sending", to=to)

        worker.run()

    Each task runs at least once: it runs again if this process dies before the report is stored, but not if only an
    acknowledgement is lost. A handler that must not act twice uses `context.execution_id` as an idempotency key, or passes
    `context.fence` to the system that it changes. Installations with jobs of one name share the ids of occurrences.
    """

    connect_by_default: ClassVar[Connect | None] = None
    """Opens the connection; set by `import tocsin`, because this package does not know NATS."""

    def __init__(  # noqa: PLR0913 - the options of a worker
        self,
        queues: Sequence[str] = ("default",),
        *,
        concurrency: int = 10,
        shutdown_timeout: float = 30.0,
        name: str | None = None,
        nats_url: str | None = None,
        labels: Mapping[str, str] | None = None,
        secrets: Collection[str] = (),
        shards: Sequence[str] = (),
        connect: Connect | None = None,
    ) -> None:
        """Configure a worker; it connects when it runs.

        Args:
            queues: the queues to take tasks from.
            concurrency: the number of tasks that run at the same time, over all queues.
            shutdown_timeout: seconds that handlers may continue after the worker is stopped.
            name: the agent's name: letters, digits, `-` and `_`, unique among the workers that run at the same time. By
                default made from the host, the process id and a number. `tocsin agents disable` disables a name.
            nats_url: the URL of the NATS server; by default from the settings (`TOCSIN_NATS_URL`). `tocsin worker --nats`
                replaces it.
            labels: texts by name that `tocsin agents` shows with the worker.
            secrets: the secrets that an input may refer to: `NAME` for `${env:NAME}`, `file:/PATH` for `${file:/PATH}`, and
                `file:/FOLDER/*` for each file directly in a folder. Others are not resolved, because a client that may
                enqueue a job may write any reference into its input.
            shards: the ids of the shards that the worker may own, or `["*"]` for every shard. Only the owner of a shard gets the
                tasks of executions on it; while no worker declares a shard, any worker gets them. The setting
                `worker.shards` replaces them.
            connect: opens another connection than the default, for example to the in-memory log in tests. `tocsin worker` uses it
                too, and refuses `--nats` and `--shard` beside it.

        Raises:
            ValueError: an option is out of its range, or a secret has an invalid name.
            TypeError: `queues`, `secrets` or `shards` is one string.
        """
        refuse_text("shards", shards, "sequence of ids")
        refuse_text("secrets", secrets, "collection of names")
        refuse_text("queues", queues, "sequence of names")
        check_allowed(secrets)
        self.options = Options(
            queues=tuple(queues),
            concurrency=concurrency,
            shutdown_timeout=shutdown_timeout,
            name=name or unique_name(),
            nats_url=nats_url,
            labels=dict(labels or {}),
            secrets=frozenset(secrets),
            shards=agent.checked_shards(shards),
        )
        self._connect = connect
        self.handlers = Handlers()
        """The registered handlers, also for a runtime that runs them itself, such as a simulation."""
        self._shutdown = Shutdown()
        self._opening: asyncio.Task[Any] | None = None
        self._lock = threading.Lock()
        """Held while `stop` and `serve` compare or change `_loop`."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def task(self, function: str) -> Callable[[F], F]:
        """Register the decorated function as the handler of `function`, the name that job definitions use.

            @worker.task("mail/send")
            async def send(context: Context, to: str, *, urgent: bool = False) -> dict[str, str]: ...

        The first parameter receives the `Context`. If there are more parameters, the task's args fill them in order and the
        keys of its input by name, and the input must fit them. The handler returns None or a JSON value of at most 64 KiB.
        Raise `NonRetryableError` if another attempt would fail too; any other exception is retried by the job's policy.

        An async handler runs in the event loop and must not block it, because that stops the heartbeats of all tasks. A sync
        handler runs in a thread. After the step's timeout an async handler is cancelled. A thread cannot be cancelled: the
        attempt is reported as `timed_out`, but the thread keeps its slot until it ends, so a long sync handler should read
        `context.cancelled`.

        If its execution is cancelled, a handler is interrupted at once; if it has read `context.cancelled`, it has
        `worker.cancel_grace` seconds (10) to end by itself.

        Raises:
            InvalidHandlerError: the function is a generator, or takes no context.
            HandlerExistsError: another function is registered under this name (a ValueError).
        """
        check_name(function)

        def register(handler: F) -> F:
            self.handlers.add(function, handler)
            return handler

        return register

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then let handlers finish within `shutdown_timeout`.

        A second signal stops all handlers immediately. In a thread other than the main thread there are no signals: call
        `stop` from any thread.
        """
        with ending_loop() as runner:
            runner.run(self._run())

    @asynccontextmanager
    async def running(self, connection: Connection | None = None) -> AsyncIterator[None]:
        """Run in an application's event loop while the context is open.

        For example in the lifespan of FastAPI:

            @asynccontextmanager
            async def lifespan(app: FastAPI) -> AsyncIterator[None]:
                async with worker.running():
                    yield

        The context is open at once, also while the worker still connects. Its end stops the worker as `stop` does, and waits
        for the handlers. If the worker failed meanwhile, that is logged, and the end of the context raises the error.
        """
        serve_task = asyncio.create_task(self.serve(connection))
        serve_task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            self.stop()
            await serve_task

    async def serve(self, connection: Connection | None = None) -> None:
        """Run inside an event loop until `stop` or cancellation.

        The worker opens its own connection if `connection` is None.
        """
        shutdown = self._shutdown
        with self._lock:
            self._loop = asyncio.get_running_loop()
        if not self.handlers and not shutdown.requested:
            _log.warning(
                "worker has no handlers, so it hands back every task; register functions with @worker.task",
                action="worker-without-handlers",
                worker=self.options.name,
                queues=self.options.queues,
            )
        try:
            async with AsyncExitStack() as stack:
                if connection is None and not shutdown.requested:
                    connection = await self._open(stack, shutdown)
                if connection is not None and not shutdown.requested:
                    await self._work(connection, shutdown)
        finally:
            with self._lock:
                self._loop, self._shutdown = None, Shutdown()

    @property
    def opens_connection(self) -> bool:
        """Whether it was made with `connect`, so that `serve` without a connection opens its own."""
        return self._connect is not None

    def allow_secrets(self, names: Collection[str]) -> None:
        """Allow inputs to refer to further secrets, before the worker runs.

        Raises:
            ValueError: a name is neither a variable nor an absolute path.
        """
        check_allowed(names)
        self.options = replace(self.options, secrets=self.options.secrets | frozenset(names))

    def take_from(self, queue: str) -> None:
        """Take tasks from a further queue too, before the worker runs."""
        if queue not in self.options.queues:
            self.options = replace(self.options, queues=(*self.options.queues, queue))

    def offer(self, function: str, builtin: BuiltinFunction) -> None:
        """Offer a built-in function too, before the worker runs."""
        self.handlers.add_builtin(function, builtin)

    def stop(self) -> None:
        """Stop the worker, from any thread. A second call stops all handlers immediately.

        A worker that has not begun ends as soon as it begins.
        """
        with self._lock:
            if self._loop is not None and running_loop() is not self._loop:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._request_stop)
                return
            self._request_stop()

    def _request_stop(self) -> None:
        self._shutdown.request()
        if self._opening is not None:
            self._opening.cancel()

    async def _run(self) -> None:
        with stop_signals(self.stop):
            await self.serve()

    async def _open(self, stack: AsyncExitStack, shutdown: Shutdown) -> Connection | None:
        """Connect, without a time limit; None if the worker was stopped before."""
        self._opening = open_task = asyncio.current_task()
        try:
            connect = self._connect or type(self).connect_by_default
            if connect is None:
                raise NoConnectionError(
                    "The worker has no connection. Write `from tocsin import Worker`, or pass `connect`."
                )
            return await stack.enter_async_context(connect(self.options))
        except asyncio.CancelledError:
            if open_task is None or not shutdown.requested.is_set():
                raise
            open_task.uncancel()
            return None
        finally:
            self._opening = None

    async def _work(self, connection: Connection, shutdown: Shutdown) -> None:
        fields = {"worker": self.options.name, "queues": self.options.queues}
        _log.info("working", action="worker-started", functions=list(self.handlers), **fields)
        await Session(self.options, self.handlers, connection, shutdown).run()
        _log.info("stopped", action="worker-stopped", **fields)


def _log_failure(serve_task: "asyncio.Task[None]") -> None:
    if not serve_task.cancelled() and (error := serve_task.exception()) is not None:
        _log.error("worker failed", action="worker-failed", exc_info=error)
