"""A process that runs the product's code, with its own clock, pauses, and sudden death."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from .clock import ServerClock
from .loop import VirtualLoop


class Crashed(asyncio.CancelledError):
    """Raised in the code of a dead process at its next request; nothing catches it for good."""


@dataclass(eq=False, slots=True)
class Process:
    """A process from start to death. `skew`: the error of its wall clock; `behind`: pauses that its monotonic clock did not count."""

    name: str
    loop: VirtualLoop
    clock: ServerClock
    skew: timedelta = timedelta()
    behind: float = 0.0
    distance: float = 0.0
    """Seconds that a message takes more to it, or from it, than to others."""
    is_alive: bool = True
    is_stopping: bool = False
    frozen_until: float = 0.0
    is_counting: bool = True
    tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)
    on_defect: Callable[[str], None] = print

    def spawn(self, what: str, start: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run a coroutine for as long as the process lives. An exception is a defect, because it would end the process."""
        token = current.set(self)
        try:
            return self.loop.create_task(self._watched(what, start))
        finally:
            current.reset(token)

    async def _watched(self, what: str, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await start()
        except Exception as error:  # noqa: BLE001 - any exception
            self.on_defect(f"{what} ended with {error!r}")

    def crash(self) -> None:
        """Not another word."""
        self.is_alive = False
        for task in self.tasks:
            task.cancel()

    def freeze(self, seconds: float, *, is_counted: bool) -> None:
        """Stand still. A machine that sleeps does not even count the time."""
        self.thaw()
        self.frozen_until = self.loop.time() + seconds
        self.is_counting = is_counted
        if not is_counted:
            self.behind += seconds

    def thaw(self) -> None:
        """Go on."""
        if not self.is_counting:
            self.behind -= max(0.0, self.frozen_until - self.loop.time())
        self.frozen_until, self.is_counting = 0.0, True

    def check(self) -> None:
        """Raise `Crashed` if it is dead."""
        if not self.is_alive:
            raise Crashed

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """Run a function inside the process: after its pause, and never after its death."""
        self.loop.call_at(max(self.loop.time() + delay, self.frozen_until), self._wake, callback)

    def _wake(self, callback: Callable[[], object]) -> None:
        if not self.is_alive:
            return
        if self.frozen_until > self.loop.time():
            self.loop.call_at(self.frozen_until, self._wake, callback)
        else:
            callback()

    async def wait(self, seconds: float) -> None:
        """Let others work for so long."""
        self.check()
        awake: asyncio.Future[None] = self.loop.create_future()
        self.call_later(seconds, partial(wake, awake))
        await awake


def wake(awake: "asyncio.Future[None]") -> None:
    """Continue the waiting task, unless it was cancelled."""
    if not awake.done():
        awake.set_result(None)


class ProcessClock:
    """Implements `ports.Clock`, as wrong as its process's is."""

    def __init__(self, process: Process) -> None:
        """The clock of a process."""
        self._process = process

    def now(self) -> datetime:
        """By its wall clock."""
        return self._process.clock.now() + self._process.skew

    def monotonic(self) -> float:
        """By its steady clock."""
        return self._process.loop.time() - self._process.behind

    async def sleep(self, seconds: float) -> None:
        """Let others work for so long."""
        await self._process.wait(max(0.0, seconds))


current: ContextVar[Process | None] = ContextVar("current", default=None)
"""Whose code runs: tasks inherit it."""


def adopt(task: "asyncio.Task[Any]") -> None:
    """Record a new task in the process that started it; a dead process starts none."""
    process = current.get()
    if process is not None:
        process.tasks.append(task)
        if not process.is_alive:
            task.cancel()
