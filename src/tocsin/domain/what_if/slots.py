"""Slots of workers, given out by the rules of the task board.

An execution takes one slot of the queue of its first step, from its start to its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ..events import Requested
from ..execution.tasks import limit_of
from ..open_task import LimitGroup, OpenTask
from ..task_lanes import TaskLanes
from ..task_offers import Offer

UNLIMITED: Final = 2**31
"""The slots of a queue whose capacity is not given."""


@dataclass(slots=True)
class Slots:
    """The open tasks of limited queues, and the slots of their workers."""

    capacity: Mapping[str, int]
    """The slots of each queue; a queue without an entry here is not limited."""
    _lanes: TaskLanes = field(default_factory=lambda: TaskLanes(max_bytes=0))
    _functions: dict[str, set[str]] = field(default_factory=dict)
    _tasks: dict[str, OpenTask] = field(default_factory=dict)
    """The tasks that are open or running, by execution."""
    _sequence: int = 0

    def may_hold_back(self, request: Requested) -> bool:
        """Return whether a task of an execution may have to wait for a slot."""
        return request.plan.steps[0].queue in self.capacity

    def open(self, name: str, request: Requested, now: datetime) -> None:
        """Let the task of an execution wait for a slot."""
        task = self._task(name, request, now)
        self._lanes.put(task)

    def occupy(self, name: str, request: Requested, now: datetime) -> None:
        """Give a slot to an execution that had started before."""
        self._lanes.occupy(self._task(name, request, now))

    def free(self, name: str) -> None:
        """Free the slot of an execution, or forget its task if it has none."""
        if (task := self._tasks.pop(name, None)) is None:
            return
        if self._lanes.get(task.key) is None:
            self._lanes.vacate(task)
        else:
            self._lanes.remove(task)

    def fill(self, queue: str) -> list[str]:
        """Start as many tasks of a queue as fit; return their executions."""
        free = self.capacity[queue] - self._lanes.running_in(queue)
        if free <= 0 or not self._functions.get(queue):
            return []
        offer = Offer(queue, (queue,), frozenset(self._functions[queue]), free)
        return [task.scope for task, _ in self._lanes.take([offer], limit=free)]

    def _task(self, name: str, request: Requested, now: datetime) -> OpenTask:
        step = request.plan.steps[0]
        limit = limit_of(request, step)
        self._sequence += 1
        task = self._tasks[name] = OpenTask(
            scope=name,
            step=step.name,
            attempt=1,
            sequence=self._sequence,
            subject="",
            job=request.job,
            queue=step.queue,
            function=step.function,
            time=now,
            body=None,
            priority=step.priority,
            group=None if limit is None else LimitGroup(request.job, limit.key, limit.value),
            limit=0 if limit is None else limit.limit,
        )
        self._functions.setdefault(step.queue, set()).add(step.function)
        return task
