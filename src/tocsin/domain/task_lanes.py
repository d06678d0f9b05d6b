"""Open tasks by queue, function, priority and job, and the choice of the next task.

A lane has the tasks of one queue, function and priority, and of one resource if they need one. In it, each job has lines: tasks that the same limit and the same
refusals hold back. A line is listed if it has tasks and no limit holds it back, and a job if one of its lines is listed. So a
choice looks at nothing that is held back, and takes O(log n) steps, spread over all choices.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import TypeAlias

from .hold_up_time import NO_TIMES, Gate, HoldUpCause, added, stopped
from .namespaces import declared_of
from .open_task import LaneKey, LimitGroup, OpenTask, RateGroup, StepKey
from .ownership import function_of, is_owned
from .task_lines import Group, JobLines, Lane, Line, LineKey, Starts
from .task_offers import FreeSlots, Offer


class TaskLanes:
    """All open tasks."""

    def __init__(self, *, clock: Callable[[], float] = stopped) -> None:
        """Start without tasks. `clock` returns seconds, and never goes back."""
        self._clock = clock
        self._lines: dict[StepKey, Line] = {}
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self._priorities: dict[str, dict[str, set[int]]] = {}
        """The priorities of open tasks by queue and function."""
        self._groups: dict[LimitGroup, Group] = {}
        self._starts: dict[RateGroup, Starts] = {}
        self._running: dict[str, int] = {}
        """The number of tasks of each queue that workers have or get."""
        self._turns: dict[tuple[str, str], int] = {}
        """The turn of each job of a queue: it is the last of its queue when it comes, and when it was served."""
        self._lanes_of_job: dict[tuple[str, str], int] = {}
        """The number of lanes with tasks of a job, by queue and job."""
        self._owned: dict[str, Counter[LaneKey]] = {}
        """The number of open tasks of each lane that only the owner of a resource gets, by resource."""
        self._alone: dict[StepKey, OpenTask] = {}
        """The tasks that run alone; no lane lists them."""
        self._queue_turns: dict[str, int] = {}
        """The turn of each queue with tasks: it is the last when it comes, and when it was served."""
        self._namespace_turns: dict[str | None, int] = {}
        self._queue_gates: dict[str, Gate] = {}
        self._turn = 0

    def get(self, key: StepKey) -> OpenTask | None:
        line = self._lines.get(key)
        return None if line is None else line.tasks[key]

    def refuse(self, task: OpenTask, agents: frozenset[str]) -> None:
        if task.refused_by != agents:
            turn, queue_turn = self._turns[task.queue, task.job], self._queue_turns[task.queue]
            self.remove(task)
            task.refused_by = agents
            self._turns[task.queue, task.job], self._queue_turns[task.queue] = turn, queue_turn
            self.put(task, is_first=True)

    def occupy(self, task: OpenTask) -> None:
        """Count a task that a worker has, or is about to have."""
        self._running[task.queue] = self.running_in(task.queue) + 1
        if task.group is not None:
            group = self._groups.setdefault(task.group, Group())
            group.running += 1
            for line in group.lines.get(group.running, ()):
                self._update(line)

    def vacate(self, task: OpenTask) -> None:
        """Do not count a task any more."""
        self._running[task.queue] -= 1
        if not self._running[task.queue]:
            del self._running[task.queue]
        if task.group is not None:
            group = self._groups[task.group]
            group.running -= 1
            for line in group.lines.get(group.running + 1, ()):
                self._update(line)
            self._forget_if_idle(task.group)

    def hold_up(self, causes: Mapping[str, HoldUpCause]) -> None:
        """Note what holds back all tasks of a queue now, by queue."""
        if not causes and not self._queue_gates:
            return
        now = self._clock()
        for queue in {*self._queue_gates, *causes}:
            if queue not in self._priorities:
                self._queue_gates.pop(queue, None)
            else:
                self._queue_gates.setdefault(queue, Gate()).change(causes.get(queue), now)

    def waiting_rates(self, most: int) -> list[RateGroup]:
        """Return up to `most` groups of rates whose tasks may not start, in turns."""
        held = list(islice((group for group, starts in self._starts.items() if not starts.may_start), most))
        for group in held:
            self._starts[group] = self._starts.pop(group)
        return held

    def let_start(self, room: Mapping[RateGroup, int]) -> None:
        """Note the number of tasks that may start now, by group."""
        for group, number in room.items():
            if (starts := self._starts.get(group)) is not None:
                starts.room = number
                for line in starts.lines:
                    self._update(line)

    def forget_rates(self) -> None:
        """Note that it is not known which tasks of rates may start now."""
        for starts in self._starts.values():
            if starts.room is not None:
                starts.room = None
                for line in starts.lines:
                    self._update(line)

    def take(
        self,
        offers: Iterable[Offer],
        *,
        limit: int,
        room: Mapping[str, int] | None = None,
        namespaces: Mapping[str, int | None] | None = None,
        drains: bool = False,
    ) -> list[tuple[OpenTask, str]]:
        """Choose agents for up to `limit` tasks, remove the tasks, and count them as running.

        A task goes to an agent that has its queue and its function, and the most free slots. Namespaces take turns, and in each its queues. In a queue, a
        higher priority goes first; within it jobs take turns, and a job's tasks are taken in the order in which they were
        dispatched. A task that a limit or a refusal holds back holds back no other.

        Args:
            offers: the agents.
            limit: the greatest number of tasks.
            room: the number of tasks that may be taken from a queue, if that is limited.
            namespaces: the number of tasks that may be taken from the queues of each declared namespace; None: any number.
            drains: whether an agent gets no task, if none is idle and a task waits that runs alone.
        """
        slots = FreeSlots(offers)
        room_left, declared = dict(room or {}), namespaces or {}
        most = {name: number for name, number in declared.items() if number is not None}
        assignments: list[tuple[OpenTask, str]] = []
        for task, agent in self._take_alone(slots, room_left, most, drains=drains):
            assignments.append((task, agent))
            room_left[task.queue] = room_left.get(task.queue, limit) - 1
        lanes = {queue: heap for queue, heap in self._lanes_by_queue(slots) if room_left.get(queue, 1) > 0}
        by_namespace: dict[str | None, list[tuple[int, str]]] = {}
        for queue in lanes:
            turn = self._queue_turns[queue], queue
            by_namespace.setdefault(declared_of(queue, declared), []).append(turn)
        for of_namespace in by_namespace.values():
            heapify(of_namespace)
        turns = [(self._namespace_turns.get(name, 0), name or "", name) for name in by_namespace]
        heapify(turns)
        refused: list[Line] = []
        while turns and len(assignments) < limit:
            _, _, namespace = turns[0]
            queues = by_namespace[namespace]
            if not queues or (namespace in most and most[namespace] < 1):
                heappop(turns)
                continue
            _, queue = queues[0]
            choice = self._next(queue, lanes[queue], slots, refused)
            if choice is None:
                heappop(queues)
                continue
            self._serve(choice[0])
            assignments.append(choice)
            self._namespace_turns[namespace] = self._turn
            heapreplace(turns, (self._turn, namespace or "", namespace))
            if namespace in most:
                most[namespace] -= 1
            room_left[queue] = room_left.get(queue, limit) - 1
            if room_left[queue] > 0:
                heapreplace(queues, (self._turn, queue))
            else:
                heappop(queues)
        for line in refused:
            self._update(line)
        return assignments

    @property
    def numbers(self) -> Mapping[LaneKey, int]:
        numbers: dict[LaneKey, int] = {}
        for (queue, function, _), lane in self._lanes.items():
            name = queue, function_of(function)
            numbers[name] = numbers.get(name, 0) + lane.number
        return numbers

    @property
    def queues(self) -> Collection[str]:
        return self._priorities

    def functions_in(self, queue: str) -> Iterable[str]:
        """Return the functions of the tasks in a queue that any worker gets."""
        return (lane for lane in self._priorities.get(queue, {}) if not is_owned(lane))

    @property
    def owned(self) -> Mapping[str, Collection[LaneKey]]:
        """The lanes of open tasks that only an owner gets, by resource."""
        return self._owned

    def running_of(self, group: LimitGroup) -> int:
        """Return the number of tasks of a group that workers have or get."""
        return self._groups[group].running if group in self._groups else 0

    def running_in(self, queue: str) -> int:
        """Return the number of tasks of a queue that workers have or get."""
        return self._running.get(queue, 0)

    def running_by_namespace(self, declared: Collection[str]) -> Mapping[str, int]:
        """Return the number of running tasks by declared namespace of their queues."""
        running = Counter[str]()
        for queue, number in self._running.items():
            if (namespace := declared_of(queue, declared)) is not None:
                running[namespace] += number
        return running

    def held_groups(self) -> Mapping[tuple[str, LimitGroup, int], int]:
        """Return the number of tasks that limits hold back, by queue, group and limit."""
        held: dict[tuple[str, LimitGroup, int], int] = {}
        for name, group in self._groups.items():
            for limit, lines in group.lines.items():
                for line in lines if group.running >= limit else ():
                    key = line.lane.key[0], name, limit
                    held[key] = held.get(key, 0) + len(line.tasks)
        return held

    def oldest_times(self) -> Mapping[str, datetime]:
        oldest: dict[str, datetime] = {}
        for (queue, _, _), lane in self._lanes.items():
            of_lane = min(line.first.time for job in lane.jobs.values() for line in job.lines.values())
            oldest[queue] = min(oldest.get(queue, of_lane), of_lane)
        return oldest

    def suspects(self) -> Iterator[OpenTask]:
        """Yield the tasks whose workers were lost before."""
        jobs = (job for lane in self._lanes.values() for job in lane.jobs.values())
        lines = (line for job in jobs for line in job.lines.values())
        return (task for line in lines if line.first.deaths for task in line.tasks.values())

    def __iter__(self) -> Iterator[OpenTask]:
        return (line.tasks[key] for key, line in self._lines.items())

    def __len__(self) -> int:
        return len(self._lines)

    def _lanes_by_queue(self, slots: FreeSlots) -> Iterator[tuple[str, list["_Rank"]]]:
        for queue, of_queue in self._priorities.items():
            served = {name: priorities for name, priorities in of_queue.items() if slots.has(queue, name)}
            heap = [(-priority, 0, 0, name) for name, priorities in served.items() for priority in priorities]
            heapify(heap)
            if heap:
                yield queue, heap

    def _next(
        self, queue: str, lanes: list["_Rank"], slots: FreeSlots, refused: list[Line]
    ) -> tuple[OpenTask, str] | None:
        """Return the next task of a queue that an agent can take, and that agent."""
        while lanes:
            priority, _, _, function = known_rank = lanes[0]
            lane = self._lanes.get((queue, function, -priority))
            first = None if lane is None or not slots.has(queue, function) else self._first_line(lane)
            if first is None:
                heappop(lanes)
                continue
            turn, line = first
            task = line.first
            rank = priority, turn, task.sequence, function
            if rank != known_rank:
                heapreplace(lanes, rank)
                if lanes[0] is not rank:
                    continue
            agent = slots.take(queue, function, refused_by=task.refused_by, is_suspect=task.deaths > 0)
            if agent is not None:
                return task, agent
            self._unlist(line)
            refused.append(line)
        return None

    def _take_alone(
        self, slots: FreeSlots, room: Mapping[str, int], most: dict[str, int], *, drains: bool
    ) -> Iterator[tuple[OpenTask, str]]:
        """Take the tasks that run alone, with their agents; count them in `most`."""
        for key, task in tuple(self._alone.items()):
            line, namespace = self._lines[key], declared_of(task.queue, most)
            is_full = room.get(task.queue, 1) < 1 or (namespace is not None and most[namespace] < 1)
            if is_full or not line.may_start:
                continue
            agent = slots.take_whole(task.queue, line.lane.key[1], refused_by=task.refused_by, drains=drains)
            if agent is not None:
                self._serve(task)
                if namespace is not None:
                    most[namespace] -= 1
                yield task, agent

    def _first_line(self, lane: Lane) -> tuple[int, Line] | None:
        """Return the first line of the job whose turn it is, and the turn."""
        while (first := lane.listed.first) is not None:
            known_turn, job = first
            turn = self._turns[lane.key[0], job]
            if turn == known_turn:
                line = lane.jobs[job].listed.first
                assert line is not None  # noqa: S101 - a listed job has a listed line
                return turn, line[1]
            lane.listed.put(job, turn)  # it was served in another lane
        return None

    def _serve(self, task: OpenTask) -> None:
        """Remove a task, count it, and let other jobs and queues go first."""
        self._turn += 1
        self._queue_turns[task.queue] = self._turn
        self._turns[task.queue, task.job] = self._turn
        starts = None if task.rate is None else self._starts[task.rate]
        self.remove(task)
        self.occupy(task)
        if starts is not None:
            starts.room = (starts.room or 0) - 1
            for line in () if starts.may_start else starts.lines:
                self._update(line)

    def put(self, task: OpenTask, *, is_first: bool = False) -> None:
        """Add a task; `is_first`: before the other tasks of its line."""
        name = task.function if task.resource is None else task.lane
        lane_key = task.queue, name, task.priority
        if (lane := self._lanes.get(lane_key)) is None:
            lane = self._lanes[lane_key] = Lane(lane_key)
            self._priorities.setdefault(task.queue, {}).setdefault(name, set()).add(task.priority)
            if task.queue not in self._queue_turns:
                self._turn += 1
                self._queue_turns[task.queue] = self._turn
        if task.resource is not None:
            self._owned.setdefault(task.resource, Counter())[task.queue, name] += 1
        if (job := lane.jobs.get(task.job)) is None:
            job = lane.jobs[task.job] = JobLines()
            of_queue = task.queue, task.job
            self._lanes_of_job[of_queue] = self._lanes_of_job.get(of_queue, 0) + 1
            if of_queue not in self._turns:
                self._turn += 1
                self._turns[of_queue] = self._turn
        line_key = task.group, task.limit, task.rate, task.refused_by, task.deaths > 0, task.runs_alone
        if (line := job.lines.get(line_key)) is None:
            line = job.lines[line_key] = self._new_line(lane, task, line_key)
        key = task.key
        line.tasks[key] = task
        self._lines[key] = line
        if task.runs_alone:
            self._alone[key] = task
        self._note_times(task, line)
        lane.number += 1
        if is_first:
            line.tasks.move_to_end(key, last=False)
        if is_first or len(line.tasks) == 1:  # otherwise the first task of the line is the same
            self._update(line)

    def _new_line(self, lane: Lane, task: OpenTask, key: LineKey) -> Line:
        """Return a line without tasks, known to what may hold it back."""
        group = None if task.group is None else self._groups.setdefault(task.group, Group())
        starts = None if task.rate is None else self._starts.setdefault(task.rate, Starts())
        line = Line(lane, task.job, key, group, starts)
        if starts is not None:
            starts.lines[line] = None
        if group is not None:
            group.lines.setdefault(task.limit, {})[line] = None
        return line

    def remove(self, task: OpenTask) -> None:
        line = self._lines.pop(task.key)
        self._alone.pop(task.key, None)
        lane = line.lane
        if task.resource is not None:
            self._forget_owned(task.resource, lane.key[:2])
        del line.tasks[task.key]
        self._count_hold_ups(task, line)
        lane.number -= 1
        self._update(line)
        if line.tasks:
            return
        jobs = lane.jobs[line.job]
        del jobs.lines[line.key]
        group, limit, rate, *_ = line.key
        if rate is not None and line.starts is not None:
            del line.starts.lines[line]
            if not line.starts.lines:
                del self._starts[rate]
        if group is not None and line.group is not None:
            del line.group.lines[limit][line]
            if not line.group.lines[limit]:
                del line.group.lines[limit]
            self._forget_if_idle(group)
        if not jobs.lines:
            del lane.jobs[line.job]
            self._forget_job(task.queue, line.job)
        if not lane.jobs:
            del self._lanes[lane.key]
            self._forget_priority(*lane.key)

    def _note_times(self, task: OpenTask, line: Line) -> None:
        """Note what the gates before a task have counted until it comes."""
        gate = self._queue_gates.get(task.queue)
        if gate is None and not line.is_limited:
            task.times_before = None
            return
        now = self._clock()
        task.times_before = line.gate.times(now), NO_TIMES if gate is None else gate.times(now)

    def _count_hold_ups(self, task: OpenTask, line: Line) -> None:
        """Count the time for which the gates held back a task since it came."""
        gate = self._queue_gates.get(task.queue)
        if gate is None and task.times_before is None:
            return
        now = self._clock()
        of_line, of_queue = task.times_before or (NO_TIMES, NO_TIMES)
        task.held_up = added(task.held_up, of_line, line.gate.times(now))
        if gate is not None:
            task.held_up = added(task.held_up, of_queue, gate.times(now))

    def _update(self, line: Line) -> None:
        cause = line.held_up_by
        if cause != line.gate.cause:
            line.gate.change(cause, self._clock())
        if not line.tasks or not line.may_start or line.runs_alone:
            self._unlist(line)
            return
        line.lane.jobs[line.job].listed.put(line, line.first.sequence)
        if line.job not in line.lane.listed:
            line.lane.listed.put(line.job, self._turns[line.lane.key[0], line.job])

    def _unlist(self, line: Line) -> None:
        listed = line.lane.jobs[line.job].listed
        listed.discard(line)
        if not len(listed):
            line.lane.listed.discard(line.job)

    def _forget_job(self, queue: str, job: str) -> None:
        self._lanes_of_job[queue, job] -= 1
        if not self._lanes_of_job[queue, job]:
            del self._lanes_of_job[queue, job], self._turns[queue, job]

    def _forget_priority(self, queue: str, name: str, priority: int) -> None:
        functions = self._priorities[queue]
        functions[name].discard(priority)
        if not functions[name]:
            del functions[name]
            if not functions:
                del self._priorities[queue], self._queue_turns[queue]

    def _forget_owned(self, resource: str, lane: LaneKey) -> None:
        lanes = self._owned[resource]
        lanes[lane] -= 1
        if not lanes[lane]:
            del lanes[lane]
            if not lanes:
                del self._owned[resource]

    def _forget_if_idle(self, group: LimitGroup) -> None:
        known = self._groups[group]
        if not known.running and not known.lines:
            del self._groups[group]


_Rank: TypeAlias = tuple[int, int, int, str]
"""The rank of a lane in its queue: priority (negative), turn and sequence of its first task, and its function."""
