"""Open tasks by queue and function, and the choice of their agents."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Final, TypeAlias

StepKey: TypeAlias = tuple[str, str]
"""The scope of an execution, and the name of one of its steps."""
LaneKey: TypeAlias = tuple[str, str]
"""A queue and a function."""


@dataclass(slots=True)
class OpenTask:
    """A task, as it is stored."""

    scope: str
    step: str
    attempt: int
    sequence: int
    subject: str
    job: str
    queue: str
    function: str
    time: datetime
    """When it was stored (UTC)."""
    body: bytes | None
    """None: it is read again before the task is handed over."""
    delivery: int = 1
    """The delivery number of its claim: more than 1 if the same attempt was claimed before, and released."""
    refused_by: frozenset[str] = frozenset()
    """The agents that handed the task back."""

    @property
    def key(self) -> StepKey:
        """The step that the task is about."""
        return self.scope, self.step


@dataclass(frozen=True, slots=True)
class Offer:
    """The free slots of an agent."""

    agent_id: str
    queues: Collection[str]
    functions: Collection[str]
    slots: int


@dataclass(slots=True)
class _Lane:
    """The open tasks of one function in one queue, by job.

    The job that was served longest ago is the first.
    """

    jobs: OrderedDict[str, OrderedDict[StepKey, OpenTask]] = field(default_factory=OrderedDict)
    number: int = 0


class TaskLanes:
    """All open tasks. Their bodies are kept up to a limit."""

    def __init__(self, *, max_bytes: int) -> None:
        """Start without tasks; keep at most `max_bytes` bytes of bodies."""
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self._tasks: dict[StepKey, OpenTask] = {}
        self._lanes: dict[LaneKey, _Lane] = {}
        self._functions: dict[str, set[str]] = {}
        """The functions of open tasks by queue."""
        self._turns: dict[tuple[str, str], int] = {}
        """When each job of a queue was served last."""
        self._turn = 0

    def put(self, task: OpenTask, *, is_first: bool = False) -> None:
        """Add a task; `is_first`: before the other tasks of its job."""
        self._tasks[task.key] = task
        lane = self._lanes.setdefault((task.queue, task.function), _Lane())
        self._functions.setdefault(task.queue, set()).add(task.function)
        tasks = lane.jobs.setdefault(task.job, OrderedDict())
        tasks[task.key] = task
        lane.number += 1
        if task.body is not None:
            if self._kept_bytes + len(task.body) > self._max_bytes:
                task.body = None
            else:
                self._kept_bytes += len(task.body)
        if is_first:
            tasks.move_to_end(task.key, last=False)

    def get(self, key: StepKey) -> OpenTask | None:
        """Return the open task of a step."""
        return self._tasks.get(key)

    def remove(self, task: OpenTask) -> None:
        """Remove a task."""
        del self._tasks[task.key]
        self._kept_bytes -= len(task.body or b"")
        key = task.queue, task.function
        lane = self._lanes[key]
        del lane.jobs[task.job][task.key]
        lane.number -= 1
        if not lane.jobs[task.job]:
            del lane.jobs[task.job]
            self._turns.pop((task.queue, task.job), None)
            if not lane.jobs:
                del self._lanes[key]
                self._functions[task.queue].discard(task.function)

    def take(self, offers: Iterable[Offer], *, limit: int) -> list[tuple[OpenTask, str]]:
        """Choose agents for up to `limit` tasks, and remove the tasks.

        A task goes to an agent that has its queue and its function, and the most free slots. Jobs take turns; a job's tasks
        are taken in the order in which they were dispatched.
        """
        by_lane = self._by_lane(offers)
        slots = {offer.agent_id: offer.slots for agents in by_lane.values() for offer in agents}
        heap = [(self._turn_of(lane), lane) for lane in by_lane]
        heapify(heap)
        assignments: list[tuple[OpenTask, str]] = []
        while heap and len(assignments) < limit:
            _, lane = heap[0]
            position = self._next(lane, by_lane[lane], slots)
            if position is None:
                heappop(heap)
                continue
            task, agent_id = position
            slots[agent_id] -= 1
            self._serve(task)
            assignments.append(position)
            if lane in self._lanes:
                heapreplace(heap, (self._turn_of(lane), lane))
            else:
                heappop(heap)
        return assignments

    @property
    def numbers(self) -> Mapping[LaneKey, int]:
        """The number of tasks in each lane."""
        return {key: lane.number for key, lane in self._lanes.items()}

    def oldest_in(self, queue: str) -> datetime | None:
        """Return when the oldest task of a queue was stored, if any."""
        lanes = (lane for (of, _), lane in self._lanes.items() if of == queue)
        firsts = (next(iter(tasks.values())).time for lane in lanes for tasks in lane.jobs.values())
        return min(firsts, default=None)

    def __iter__(self) -> Iterator[OpenTask]:
        """Yield every task."""
        return iter(self._tasks.values())

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._tasks)

    def _by_lane(self, offers: Iterable[Offer]) -> dict[LaneKey, list[Offer]]:
        """Return the agents with a free slot for each lane that has tasks."""
        lanes: dict[LaneKey, list[Offer]] = {}
        for offer in offers:
            if offer.slots < 1:
                continue
            for queue in offer.queues:
                for function in self._functions.get(queue, _NOTHING).intersection(offer.functions):
                    lanes.setdefault((queue, function), []).append(offer)
        return lanes

    def _next(self, lane: LaneKey, offers: Sequence[Offer], slots: Mapping[str, int]) -> tuple[OpenTask, str] | None:
        """Return the next task of a lane that an agent can take, and that agent."""
        free = [offer.agent_id for offer in offers if slots[offer.agent_id] > 0]
        for tasks in self._lanes[lane].jobs.values() if free else ():
            for task in tasks.values():
                agents = [id_ for id_ in free if id_ not in task.refused_by] if task.refused_by else free
                if agents:
                    return task, max(agents, key=slots.__getitem__)
        return None

    def _turn_of(self, lane: LaneKey) -> int:
        """Return when the first job of a lane was served last."""
        return self._turns.get((lane[0], next(iter(self._lanes[lane].jobs))), 0)

    def _serve(self, task: OpenTask) -> None:
        """Remove a task, and let the other jobs of its lane go first."""
        lane = self._lanes[task.queue, task.function]
        self.remove(task)
        if task.job in lane.jobs:
            self._turn += 1
            self._turns[task.queue, task.job] = self._turn
            lane.jobs.move_to_end(task.job)


_NOTHING: Final[frozenset[str]] = frozenset()
