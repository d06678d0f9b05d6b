"""The tasks that a worker holds."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from math import inf
from typing import NamedTuple

from ..domain.agent import MAX_HELD, Assignment
from ..subjects import entity_of
from .outcome import StopReason
from .shutdown import Flag


class AssignedTask(NamedTuple):
    """A task with the claim on it, which the matcher stored in this worker's name."""

    assignment: Assignment
    body: bytes
    """The task, as published."""
    hand_back_claim: Callable[[int], None]

    def hand_back(self) -> None:
        """Let the next hold list say that the task does not run here."""
        self.hand_back_claim(self.assignment.claim)


class HeldTask:
    """One task from its arrival to its report. Other parts stop its handler through it."""

    __slots__ = ("abandoned", "assigned", "cancelled", "has_expired", "is_left", "runner", "stopped")

    def __init__(self, assigned: AssignedTask) -> None:
        self.assigned = assigned
        self.cancelled = Flag()
        self.has_expired = False
        """The handler was interrupted by its timeout."""
        self.stopped: StopReason | None = None
        self.abandoned: Future[object] | None = None
        """A sync handler that still runs in its thread although its result is no longer needed."""
        self.is_left = False
        """The worker has ended without waiting for this task, which may run elsewhere: nothing of it is stored any more."""
        self.runner: asyncio.Task[object] | None = None
        """The asyncio task in which the handler runs, so that others interrupt it; None: it has not begun, or has ended."""

    @property
    def name(self) -> str:
        """The task in hold lists: `<job>.<execution id>.<step>.<attempt>`."""
        tokens = self.assigned.assignment.subject.split(".")
        return ".".join((*tokens[1:3], *tokens[4:6]))

    def cancel_execution(self) -> bool:
        """Stop the handler, or return True if it watches `cancelled` and may end by itself."""
        if self.runner is None or not self.cancelled.is_watched:
            self.stop(StopReason.CANCELLED)
            return False
        self.stopped = self.stopped or StopReason.CANCELLED
        self.cancelled.set()
        return True

    def stop(self, reason: StopReason) -> None:
        """Interrupt the handler, or keep it from starting. The first reason counts."""
        self.stopped = self.stopped or reason
        self.cancelled.set()
        if self.runner is not None:
            self.runner.cancel()


class TimeLimits:
    """The timeouts of running handlers.

    One timer serves all, and only handlers that outlive a turn of the loop: setting a timer costs more than a short handler.
    """

    def __init__(self) -> None:
        self._deadlines: dict[HeldTask, float] = {}
        """By the time of the loop."""
        self._looks_at = inf
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, held: HeldTask, timeout: float) -> None:
        """Mark that a handler runs in the current asyncio task, for `timeout` seconds."""
        loop = self._loop = self._loop or asyncio.get_running_loop()  # each call of it is a system call
        held.runner = asyncio.current_task(loop)
        deadline = self._deadlines[held] = loop.time() + timeout
        if deadline < self._looks_at:
            self._looks_at = deadline
            loop.call_soon(self._look, loop)

    def end(self, held: HeldTask) -> None:
        """Mark that a handler ended, so that nothing interrupts the report."""
        self._deadlines.pop(held, None)
        if held.has_expired and held.runner is not None:
            held.runner.uncancel()
        held.runner = None
        if self._timer is not None and not self._deadlines:
            self._timer.cancel()
            self._timer, self._looks_at = None, inf

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Interrupt the handlers whose time is over, and set the timer for the next."""
        now = loop.time()
        for held in [held for held, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[held]
            if held.runner is not None:
                held.has_expired = True
                held.runner.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._looks_at = None, min(self._deadlines.values(), default=inf)
        if self._deadlines:
            self._timer = loop.call_at(self._looks_at, self._look, loop)


class HeldTasks:
    """All tasks that a worker holds, in the order of their arrival."""

    def __init__(self) -> None:
        self._all: dict[HeldTask, None] = {}  # a dictionary, because a set has no order
        self._handed_back: deque[int] = deque(maxlen=MAX_HELD)
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, held: HeldTask) -> None:
        """Add a task."""
        self._all[held] = None
        self._empty.clear()

    def remove(self, held: HeldTask) -> None:
        """Remove a task that is reported or handed back."""
        self._all.pop(held, None)
        if not self._all:
            self._empty.set()

    def hand_back(self, claim: int) -> None:
        """Note that the task of a claim in this worker's name does not run here."""
        self._handed_back.append(claim)

    @property
    def handed_back(self) -> tuple[int, ...]:
        """The claims that were handed back, the newest last."""
        return tuple(self._handed_back)

    async def settled(self) -> None:
        """Wait until no task is held."""
        await self._empty.wait()

    def of(self, executions: Collection[str]) -> list[HeldTask]:
        """Return the tasks of some executions (`<job>.<execution id>`)."""
        return [task for task in self._all if entity_of(task.assigned.assignment.subject) in executions]

    def __iter__(self) -> Iterator[HeldTask]:
        """Iterate over a copy, so that tasks may be removed meanwhile."""
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)
