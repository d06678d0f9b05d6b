"""The tasks that a worker holds."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from ..domain.agent import MAX_HELD, Assignment
from ..subjects import entity_of, job_of
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

    __slots__ = ("_runner", "abandoned", "assigned", "cancelled", "entity", "is_left", "stopped")

    def __init__(self, assigned: AssignedTask) -> None:
        self.assigned = assigned
        self.entity = entity_of(assigned.assignment.subject)
        """The key of its execution."""
        self.cancelled = Flag()
        self.stopped: StopReason | None = None
        self.abandoned: Future[object] | None = None
        """A sync handler that still runs in its thread although its result is no longer needed."""
        self.is_left = False
        """The worker has ended without waiting for this task, which may run elsewhere: nothing of it is stored any more."""
        self._runner: asyncio.Task[object] | None = None

    @property
    def names(self) -> dict[str, str]:
        """The job, the execution, the step and the attempt, for log lines."""
        subject = self.assigned.assignment.subject
        step, attempt = subject.split(".")[4:6]
        job, execution_id = job_of(subject), self.entity.rpartition(".")[2]
        return {"job": job, "execution_id": execution_id, "step": step, "attempt": attempt}

    @property
    def is_running(self) -> bool:
        """Whether the handler runs: it has begun, and its report has not."""
        return self._runner is not None

    def begin(self) -> None:
        """Mark that the handler runs in the current asyncio task, so that `stop` interrupts it."""
        self._runner = asyncio.current_task()

    def end(self) -> None:
        """Mark that the handler ended, so that `stop` does not interrupt the report."""
        self._runner = None

    def cancel_execution(self) -> bool:
        """Stop the handler, or return True if it watches `cancelled` and may end by itself."""
        if self._runner is None or not self.cancelled.is_watched:
            self.stop(StopReason.CANCELLED)
            return False
        self.stopped = self.stopped or StopReason.CANCELLED
        self.cancelled.set()
        return True

    def stop(self, reason: StopReason) -> None:
        """Interrupt the handler, or keep it from starting. The first reason counts."""
        self.stopped = self.stopped or reason
        self.cancelled.set()
        if self._runner is not None:
            self._runner.cancel()


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

    def of(self, entity: str) -> list[HeldTask]:
        """Return the tasks of one execution."""
        return [task for task in self._all if task.entity == entity]

    def __iter__(self) -> Iterator[HeldTask]:
        """Iterate over a copy, so that tasks may be removed meanwhile."""
        return iter(tuple(self._all))

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._all)
