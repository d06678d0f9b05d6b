"""An event loop whose time only jumps to its timers, so that runs are reproducible."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_ROUNDS: Final = 100
_MOST: Final = 600_000
"""Jumps in time; an ordinary schedule takes some thousands."""


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen."""


class Endless(Exception):
    """More happens than in any schedule that makes sense."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """A deterministic loop: ready callbacks run in order, and idle time jumps to the next timer.

    It has no sockets, signals, subprocesses or threads; using them raises an error.
    """

    def __init__(self, start_task: Callable[["asyncio.Task[Any]"], None]) -> None:
        """Call `start_task` with every new task."""
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._jumps = 0
        self._start_task = start_task
        self.errors: list[str] = []
        """The exceptions that no task caught."""

    # --- the interface of an asyncio loop
    # ------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the start."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function at the current moment, after all ready callbacks."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call when it is `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call in `delay` seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        """One of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        """One of this loop."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._start_task(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember it."""
        if "handle" in context:  # asyncio reports the exception of a forgotten task at garbage collection, at any time
            self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        """No."""
        return False

    def is_running(self) -> bool:
        """Yield control at any time."""
        return True

    def is_closed(self) -> bool:
        """Never."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Skip the timer when it is due."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end.

        Raises:
            Deadlock: it waits for what will never happen.
            Endless: it never ends, and something always happens.
        """
        asyncio._set_running_loop(self)
        try:
            task = asyncio.Task(main, loop=self)
            while not task.done():
                self._run_once()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def end(self, tasks: "list[asyncio.Task[Any]]") -> list[str]:
        """Cancel tasks and see them end; what did not."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(_ROUNDS):
                left = [task for task in tasks if not task.done()]
                if not left:
                    break
                for task in left:
                    task.cancel()
                while self._ready:
                    self._ready.popleft()._run()
            return [repr(task) for task in tasks if not task.done()]
        finally:
            asyncio._set_running_loop(None)

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock
        self._jumps += 1
        if self._jumps > _MOST:
            raise Endless
        when, _, handle = heapq.heappop(timers)
        self._now = max(self._now, when)
        self._ready.append(handle)
