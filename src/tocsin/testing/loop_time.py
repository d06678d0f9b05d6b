"""Simulated time in the event loop of a test.

Within a block of `installed`, tasks of a simulation and everything that they start see the simulated time: `loop.time`, `asyncio.sleep` and
`asyncio.timeout` count the seconds of the clock that the test moves. All other tasks, such as the test itself, keep the time of the
machine. A context variable distinguishes the two.

The methods of the loop are replaced on the object, by public names only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple

from typing_extensions import override

from ..adapters.memory.clock import ManualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_current: Final[ContextVar["LoopTime | None"]] = ContextVar("simulation", default=None)
on_wake: Final[ContextVar[Callable[[], None] | None]] = ContextVar("on_wake", default=None)
"""Called when a simulated time comes for which the code of this context waits."""
on_start: Final[ContextVar[Callable[..., "asyncio.Task[Any]"] | None]] = ContextVar("on_start", default=None)
"""Called with the coroutine of each task that the code of this context starts, and with what makes the task of it."""
_REPLACED: Final = ("create_task", "time", "call_soon", "call_soon_threadsafe", "call_at", "call_later")
_USERS: Final = "_tocsin_simulations"
"""The attribute with the number of simulations in a loop."""


class Timer(asyncio.TimerHandle):
    """A call at a simulated time. The loop does not know it."""

    @override
    def cancel(self) -> None:
        asyncio.Handle.cancel(self)


class LoopTime:
    """The simulated time of one event loop."""

    def __init__(self, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._timers: list[Timer] = []
        self.calls = 0
        """The number of callbacks that the simulation ever scheduled."""

    def start(self, coroutine: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Start a task that sees the simulated time."""
        context = copy_context()
        context.run(_current.set, self)
        return self._loop.create_task(coroutine, name=name, context=context)

    @property
    def has_timers(self) -> bool:
        """Whether a call waits for a simulated time."""
        self._timers = [timer for timer in self._timers if not timer.cancelled()]
        return bool(self._timers)

    def time(self) -> float:
        return self._clock.monotonic()

    def call_at(self, when: float, callback: Callable[[*Ts], object], args: tuple[*Ts], context: Context) -> Timer:
        timer = Timer(when, callback, args, self._loop, context)

        def ring() -> None:
            if not timer.cancelled():
                self._timers.remove(timer)
                if (note := context.get(on_wake)) is not None:
                    note()
                self._loop.call_soon(callback, *args, context=context)

        self._timers.append(timer)
        self._clock.after(max(0.0, when - self.time()), ring)
        return timer


class LoopMethods:
    """The replaced methods of a loop, which look at the task that calls them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep the methods of `loop`, for tasks outside simulations."""
        self._create_task = loop.create_task
        self._time = loop.time
        self._call_soon = loop.call_soon
        self._call_soon_threadsafe = loop.call_soon_threadsafe
        self._call_at = loop.call_at
        self._call_later = loop.call_later

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> "asyncio.Task[T]":  # noqa: ANN401 - those of the loop
        start = on_start.get()

        def create(started: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
            return self._create_task(started, **options)

        return create(coro) if start is None else start(coro, create)

    def time(self) -> float:
        simulation = _current.get()
        return self._time() if simulation is None else simulation.time()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        _counted(context)
        return self._call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        _counted(context)
        return self._call_soon_threadsafe(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        simulation = _counted(context)
        if simulation is None:
            return self._call_at(when, callback, *args, context=context)
        return simulation.call_at(when, callback, args, context or copy_context())

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        simulation = _counted(context)
        if simulation is None:
            return self._call_later(delay, callback, *args, context=context)
        return simulation.call_at(simulation.time() + delay, callback, args, context or copy_context())


def _counted(context: Context | None) -> LoopTime | None:
    """Return the simulation of a call, which counts it; None: it belongs to none."""
    simulation = _current.get() if context is None else context.get(_current)
    if simulation is not None:
        simulation.calls += 1
    return simulation


@contextmanager
def installed(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let tasks of simulations in a loop see the simulated time.

    The methods of the loop return when its last simulation ends.
    """
    replaced = vars(loop)
    if not replaced.get(_USERS):
        methods = LoopMethods(loop)
        replaced.update({name: getattr(methods, name) for name in _REPLACED})
    replaced[_USERS] = replaced.get(_USERS, 0) + 1
    try:
        yield
    finally:
        replaced[_USERS] -= 1
        if not replaced[_USERS]:
            for name in (*_REPLACED, _USERS):
                del replaced[name]
