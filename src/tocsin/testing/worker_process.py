"""A worker of a simulation that can be killed, and can be made to fail."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar, cast

from ..domain.events import Message
from ..ports import AgentChannel as Channel
from ..ports import Clock, LogUnavailable, Publish, Publisher, Written
from ..worker.connection import Connection, Options
from ..worker.handler_runner import Threads
from ..worker.handlers import Handler, Handlers
from ..worker.session import Session
from ..worker.shutdown import Shutdown
from .loop_time import on_start, on_wake
from .watchdog import HeldUp

MAX_WAKES: Final = 30_000
"""How often the handlers of a function may wake up at once, such as by `asyncio.sleep` in a loop."""
WAKES_PER_S: Final = 20.0
"""How often each of them may wake up in a simulated second, for any time."""

T = TypeVar("T")
_CUTS: Final = 100
"""How often the tasks are ended that start others when they end."""


class Leash(Awaitable[object]):
    """A call of async code that can be ended although it catches its cancellation."""

    def __init__(self, call: Awaitable[object]) -> None:
        self._call = call
        self.is_cut = False
        """The code gets no further turn."""

    def __await__(self) -> Generator[Any, None, object]:
        """Run the code until it ends, or is cancelled after the leash was cut."""
        steps = cast("Generator[Any, None, object]", self._call.__await__())
        error: BaseException | None = None
        while True:
            if self.is_cut:
                with suppress(RuntimeError):  # it catches this end too
                    steps.close()
                raise error or asyncio.CancelledError
            try:
                awaited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            try:
                yield awaited
            except BaseException as caught:  # noqa: BLE001 - thrown into the code
                error = caught


class StartedTasks:
    """The tasks that handlers started, and that have not ended."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], tuple[str, Leash]] = {}
        self._is_over = False
        self.held_up_by: str | None = None
        """The task that gave no turn to anything else, and was ended."""

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def all(self) -> "tuple[asyncio.Task[Any], ...]":
        return tuple(self._tasks)

    def start(
        self,
        handler: str,
        coroutine: Any,  # noqa: ANN401 - what the handler gives, of any type
        create: Callable[[Coroutine[Any, Any, T]], "asyncio.Task[T]"],
    ) -> "asyncio.Task[T]":
        """Start a task for a handler, or for another task of a handler."""
        if not isinstance(coroutine, Coroutine):
            return create(coroutine)  # which refuses it, or takes a generator
        code = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
        name = f"{code.rpartition('<locals>.')[2]} of the handler {handler}"
        leash = Leash(coroutine)
        leash.is_cut = self._is_over
        running: Any = self._run(name, leash)
        running.__name__ = getattr(coroutine, "__name__", code)
        running.__qualname__ = code
        task = create(running)
        self._tasks[task] = name, leash
        task.add_done_callback(self._tasks.pop)
        return task

    async def _run(self, name: str, leash: Leash) -> object:
        try:
            return await leash
        except HeldUp:
            self.held_up_by = name
            raise RuntimeError(f"the task {name} held up the simulation") from None

    def cancel(self) -> None:
        """Cancel the tasks. They may clean up."""
        for task in self._tasks:
            task.cancel()

    async def abandon(self) -> frozenset[str]:
        """End the tasks that still run, also against their will; return their names."""
        self._is_over = True
        names = frozenset(name for name, _ in self._tasks.values())
        for _ in range(_CUTS):
            if not self._tasks:
                break
            for task, (_, leash) in self._tasks.items():
                leash.is_cut = True
                task.cancel()
            await asyncio.gather(*self.all, return_exceptions=True)
        return names


@dataclass(slots=True)
class Injected:
    """A failure that the next runs of a step or function have."""

    name: str
    times: int
    error: BaseException


class Life:
    """Whether a process is alive."""

    def __init__(self) -> None:
        self.is_over = False

    def check(self) -> None:
        """Raise `LogUnavailable` for a process that was killed: nothing leaves it any more."""
        if self.is_over:
            raise LogUnavailable("the worker was killed")

    def heard(self, receive: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that a killed process does not get."""

        def hear(*message: Any) -> None:  # noqa: ANN401 - that of any callback
            if not self.is_over:
                receive(*message)

        return hear


class MortalPublisher:
    """Implement `ports.Publisher` for a process that can be killed."""

    def __init__(self, log: Publisher, life: Life) -> None:
        self._log = log
        self._life = life

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        self._life.check()
        return await self._log.publish(subject, message, message_id=message_id, ttl=ttl)

    async def write(self, writes: Sequence[Publish]) -> list[Written]:
        self._life.check()
        return await self._log.write(writes)


class MortalChannel:
    """The worker's part of `ports.AgentChannel`, for a process that can be killed."""

    def __init__(self, channel: Channel, life: Life) -> None:
        self._channel = channel
        self._life = life

    @property
    def connections(self) -> int:
        return self._channel.connections

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        self._life.check()
        await self._channel.announce(name, agent_id, body)

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        self._life.check()
        return await self._channel.is_heard(name, agent_id, body, wait=wait)

    def commands(self, name: str, agent_id: str, receive: Callable[..., None]) -> AbstractAsyncContextManager[None]:
        return self._channel.commands(name, agent_id, self._life.heard(receive))

    def tasks(self, name: str, agent_id: str, receive: Callable[..., None]) -> AbstractAsyncContextManager[None]:
        return self._channel.tasks(name, agent_id, self._life.heard(receive))

    def ends(self, name: str, agent_id: str, receive: Callable[..., None]) -> AbstractAsyncContextManager[None]:
        return self._channel.ends(name, agent_id, self._life.heard(receive))

    def roll_calls(self, receive: Callable[..., None]) -> AbstractAsyncContextManager[None]:
        return self._channel.roll_calls(self._life.heard(receive))


class Pace:
    """The frequency at which the handlers of one function wake up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wakes = 0.0
        self._at = clock.monotonic()
        self.running = 0
        """The number of its handlers that run."""
        self.is_too_fast = False
        """They woke up too often: the simulated time hardly passes."""

    def wake(self) -> None:
        """Count one time at which a handler goes on."""
        now = self._clock.monotonic()
        self._wakes = max(0.0, self._wakes - WAKES_PER_S * max(1, self.running) * (now - self._at)) + 1
        self._at = now
        self.is_too_fast = self.is_too_fast or self._wakes > MAX_WAKES


class Handling:
    """The handlers of a worker in a simulation.

    A sync handler runs in a thread, as in a worker. The simulated time waits for it.
    """

    def __init__(self, handlers: Handlers, clock: Clock) -> None:
        """Run what `handlers` has when a task arrives; `clock` has the simulated time."""
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._leashes: dict[asyncio.Task[Any], tuple[str, Leash]] = {}
        self.started: Final = StartedTasks()
        """The tasks that async handlers started."""
        self._threads = Threads()
        self._numbers = count()
        self.in_threads: dict[int, str] = {}
        """The sync handlers that run, by a number."""
        self.running = 0
        """The number of handlers that run."""
        self._held_up_by: str | None = None
        self.injected: list[Injected] = []
        self.handlers: Final = Handlers()
        for handler in handlers.values():
            self.handlers[handler.name] = self._wrapped(handler)

    def close(self) -> None:
        self._threads.close()

    @property
    def held_up_by(self) -> str | None:
        """The handler, or its task, that gave no turn, and was ended."""
        if self._held_up_by is not None:
            return f"async handler {self._held_up_by}"
        return None if self.started.held_up_by is None else f"task {self.started.held_up_by}"

    @property
    def too_fast(self) -> str | None:
        """The async handler that wakes up so often that the simulated time hardly passes."""
        return next((name for name, pace in self._paces.items() if pace.is_too_fast), None)

    def abandon(self) -> frozenset[str]:
        """End the async handlers that still run, also against their will; return their names."""
        for task, (_, leash) in self._leashes.items():
            leash.is_cut = True
            task.cancel()
        return frozenset(name for name, _ in self._leashes.values())

    def _wrapped(self, handler: Handler) -> Handler:
        async def handle(first: Any, *args: Any, **named: Any) -> object:  # noqa: ANN401 - those of the handler
            context = first.context if handler.is_builtin else first
            self.running += 1
            try:
                self._fail(context.step, handler.name)
                call = partial(handler.function, first, *args, **named)
                return await (self._in_loop(handler.name, call) if handler.is_async else self._in_thread(handler, call))
            except HeldUp:
                self._held_up_by = handler.name
                raise RuntimeError(f"the handler {handler.name} held up the simulation") from None
            finally:
                self.running -= 1

        return replace(handler, function=handle, is_async=True)

    def _fail(self, step: str, function: str) -> None:
        for injected in self.injected:
            if injected.times and injected.name in {step, function}:
                injected.times -= 1
                raise injected.error

    async def _in_loop(self, name: str, call: Callable[[], object]) -> object:
        pace = self._paces.setdefault(name, Pace(self._clock))
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        leash = Leash(cast("Awaitable[object]", call()))
        self._leashes[task] = name, leash
        pace.running += 1
        wake, start = on_wake.set(pace.wake), on_start.set(partial(self.started.start, name))
        try:
            return await leash
        finally:
            on_wake.reset(wake)
            on_start.reset(start)
            pace.running -= 1
            del self._leashes[task]

    async def _in_thread(self, handler: Handler, call: Callable[[], object]) -> object:
        number = next(self._numbers)
        self.in_threads[number] = handler.name
        work = self._threads.submit(call)
        loop = asyncio.get_running_loop()
        ended = asyncio.wrap_future(work)
        # After the callback of `ended`, so that the simulation waits until the loop has the result.
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self.in_threads.pop, number, None))
        return await ended


class WorkerProcess:
    """One run of a worker, until it is killed."""

    def __init__(self, options: Options, handling: Handling, connection: Connection) -> None:
        self._life = Life()
        self._shutdown = Shutdown()
        channel = cast("Channel", MortalChannel(connection.agents, self._life))
        mortal = replace(connection, log=MortalPublisher(connection.log, self._life), agents=channel)
        self._session = Session(options, handling.handlers, mortal, self._shutdown)

    async def run(self) -> None:
        """Work until the process is killed."""
        await self._session.run()

    def kill(self) -> None:
        """Let nothing leave or reach the process any more, and end its handlers."""
        self._life.is_over = True
        self._shutdown.request()
        self._shutdown.request()
