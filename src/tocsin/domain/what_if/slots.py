"""Slots of workers, given out by the rules of the task board."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from ..events import Requested
from ..execution.tasks import limit_of
from ..open_task import LimitGroup, OpenTask
from ..task_lanes import TaskLanes
from ..task_offers import Offer
from ..token_bucket import TokenBucket

UNLIMITED: Final = 2**31
"""The slots of a queue whose capacity is not given."""


_SOON: Final = timedelta(milliseconds=1)
"""The least time between two looks at a rate, whose tokens come at fractions of a microsecond."""


class Pause(NamedTuple):
    """A pause of a queue: from `start` until before `end` (UTC; None: it lasts)."""

    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The limits of one queue beside its slots, and its pauses."""

    concurrency: int | None = None
    """The tasks that workers have at a time."""
    bucket: TokenBucket | None = None
    """The rate at which tasks start."""
    pauses: Sequence[Pause] = ()

    def pause_at(self, now: datetime) -> Pause | None:
        return next(
            (pause for pause in self.pauses if pause.start <= now and (pause.end is None or now < pause.end)), None
        )


@dataclass(slots=True)
class Slots:
    """The open tasks of limited queues, and the slots of their workers."""

    capacity: Mapping[str, int]
    """The slots of each queue; a queue without an entry here is not limited."""
    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    """The limits and pauses of these queues. The bucket of a rate is full at the beginning."""
    _used_until: dict[str, float] = field(default_factory=dict)
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

    def fill(self, queue: str, now: datetime) -> list[str]:
        """Start as many tasks of a queue as fit; return their executions."""
        rules = self._rules(queue)
        if not self._functions.get(queue) or rules.pause_at(now) is not None:
            return []
        free = self.capacity[queue] if rules.concurrency is None else min(self.capacity[queue], rules.concurrency)
        free -= self._lanes.running_in(queue)
        used_until, at = self._used_until.get(queue, 0.0), now.timestamp()
        if rules.bucket is not None:
            free = min(free, rules.bucket.available(used_until, at))
        if free <= 0:
            return []
        offer = Offer(queue, (queue,), frozenset(self._functions[queue]), free)
        started = [task.scope for task, _ in self._lanes.take([offer], limit=free)]
        if rules.bucket is not None and started:
            self._used_until[queue] = rules.bucket.used(used_until, at, len(started))
        return started

    def fills_again_at(self, queue: str, now: datetime) -> datetime | None:
        """Return when tasks that wait may start although no task ends.

        None: only the end of a task, or another task, lets them start.
        """
        if not any(waiting for (name, _), waiting in self._lanes.numbers.items() if name == queue):
            return None
        rules = self._rules(queue)
        if (pause := rules.pause_at(now)) is not None:
            return pause.end
        used_until = self._used_until.get(queue, 0.0)
        if rules.bucket is None or rules.bucket.available(used_until, now.timestamp()) > 0:
            return None
        return max(now + _SOON, datetime.fromtimestamp(rules.bucket.next_at(used_until), UTC))

    def _rules(self, queue: str) -> QueueRules:
        return self.rules.get(queue, _NO_RULES)

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


_NO_RULES: Final = QueueRules()
