"""The replay of executions: their locks, the slots of workers, and their ends."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias

from .. import lock
from ..events import Admitted, Message, Recorded, Requested
from ..execution.tasks import limit_of
from ..lock import Lock
from ..open_task import LimitGroup, OpenTask
from ..task_lanes import TaskLanes
from ..task_offers import Offer
from ..token_bucket import TokenBucket
from .arrivals import UNRECORDED, Arrival
from .runs import SUPERSEDED, Moment, Outcome, RecordedJob, Status, begin_of
from .time_replay import IsSpent

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
    """The limits of one queue, and its pauses."""

    slots: int = UNLIMITED
    """The slots of its workers."""
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

    queues: Mapping[str, QueueRules]
    """The rules of each queue; a queue without an entry here is not limited. The bucket of a rate is full at the beginning."""
    _used_until: dict[str, float] = field(default_factory=dict)
    _lanes: TaskLanes = field(default_factory=TaskLanes)
    _functions: dict[str, set[str]] = field(default_factory=dict)
    _tasks: dict[str, OpenTask] = field(default_factory=dict)
    """The tasks that are open or running, by execution."""
    _sequence: int = 0

    def may_hold_back(self, request: Requested) -> bool:
        """Return whether a task of an execution may have to wait for a slot."""
        return request.plan.steps[0].queue in self.queues

    def open(self, name: str, request: Requested, now: datetime) -> None:
        """Let the task of an execution wait for a slot."""
        self._lanes.put(self._task(name, request, now))

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
        rules = self.queues[queue]
        if not self._functions.get(queue) or rules.pause_at(now) is not None:
            return []
        most = rules.slots if rules.concurrency is None else min(rules.slots, rules.concurrency)
        free = most - self._lanes.running_in(queue)
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
        rules = self.queues[queue]
        if (pause := rules.pause_at(now)) is not None:
            return pause.end
        used_until = self._used_until.get(queue, 0.0)
        if rules.bucket is None or rules.bucket.available(used_until, now.timestamp()) > 0:
            return None
        return max(now + _SOON, datetime.fromtimestamp(rules.bucket.next_at(used_until), UTC))

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
            message=None,
            priority=step.priority,
            group=None if limit is None else LimitGroup(request.job, limit.key, limit.value),
            limit=0 if limit is None else limit.limit,
        )
        self._functions.setdefault(step.queue, set()).add(step.function)
        return task


Action: TypeAlias = Literal["request", "task", "fill", "end", "end-unadmitted"]
_REQUEST: Final = 0
_LATER: Final = 1
_Key: TypeAlias = tuple[str, str | None]


_Event: TypeAlias = tuple[datetime, int, int, int, Action, Arrival | str]
"""Time, sequence, phase (requests come before ends of the same moment), a number that no other event has, action, execution (of `fill`: queue)."""


@dataclass(slots=True)
class ExecutionsReplay:
    """The executions of all jobs in a window, made again."""

    since: datetime
    until: datetime
    slots: Slots
    outcomes: list[Outcome] = field(default_factory=list)
    _locks: dict[_Key, Lock] = field(default_factory=dict)
    _arrivals: dict[tuple[str, str], Arrival] = field(default_factory=dict)
    """The executions that are not over, by job and id."""
    _events: list[_Event] = field(default_factory=list)
    _fills_at: dict[str, datetime] = field(default_factory=dict)
    """When tasks of a queue that a pause or a rate holds back are looked at again."""
    _number: int = 0
    _sequence: int = 0

    def add_locks(self, recorded: RecordedJob) -> None:
        """Take the locks of a job as they were at the beginning of the window."""
        self._sequence = max(self._sequence, recorded.runs.sequence)
        self._locks |= {(recorded.job, shard): state for shard, state in recorded.runs.locks.items()}

    def carry_over(self, arrivals: Iterable[Arrival]) -> None:
        """Continue executions that were requested before the window."""
        for arrival in arrivals:
            run, outcome = arrival.run, arrival.outcome
            held_from = None if run is None else run.held_from
            if run is not None and held_from is not None and held_from.time <= self.since:
                outcome.status, outcome.admitted_at, outcome.started_at = "running", held_from.time, run.started_at
                if arrival.request is not None and self.slots.may_hold_back(arrival.request):
                    self.slots.occupy(_name(arrival), arrival.request, held_from.time)
                self._arrivals[arrival.key] = arrival
                self._end_at(arrival, held_from.time)
                continue
            outcome.found_lock_held = run is not None and run.queued is not None and run.queued.time <= self.since
            self._expect(arrival)

    def add(self, arrival: Arrival) -> None:
        self.outcomes.append(arrival.outcome)
        self._expect(arrival)

    def advance(self, is_spent: IsSpent) -> bool:
        """Continue until the window ends (true), or the effort is spent (false)."""
        while self._events and self._events[0][0] <= self.until:
            if is_spent():
                return False
            now, _, _, _, action, of = heappop(self._events)
            if isinstance(of, str):
                del self._fills_at[of]
                self._fill(of, now)
            else:
                self._handle(action, of, now)
        for outcome in self.outcomes:
            if outcome.started_at is not None and outcome.started_at > self.until:
                outcome.started_at = None
            if outcome.admitted_at is not None and outcome.admitted_at > self.until:
                outcome.admitted_at, outcome.status = None, "waiting"
        return True

    def _handle(self, action: Action, arrival: Arrival, now: datetime) -> None:
        if arrival.outcome.is_over:
            return
        match action:
            case "request":
                self._request(arrival, now)
            case "task" if arrival.request is not None:
                self.slots.open(_name(arrival), arrival.request, now)
                self._fill(arrival.request.plan.steps[0].queue, now)
            case "end-unadmitted":
                is_cancelled = arrival.ends[0] == "cancelled"
                if arrival.outcome.status == "waiting" or is_cancelled:
                    self._end(arrival, now, *arrival.ends)
            case _:
                self._end(arrival, now, *arrival.ends)

    def _request(self, arrival: Arrival, now: datetime) -> None:
        request = arrival.request
        if request is None or arrival.outcome.status != "waiting":
            return
        needs_no_lock = isinstance(request, Admitted) and request.fence is None
        if needs_no_lock or request.plan.overlap_policy == "allow":
            self._admit(arrival, now)
            return
        key, wanted = (request.job, request.plan.shard), lock.waiting(request)
        while (holder := self._holder(key)) is not None and holder is not arrival:
            arrival.outcome.found_lock_held = True
            state = self._lock(key)
            match lock.overlap(state, request, holder.request):
                case "cancel_previous":
                    self._end(holder, now, "cancelled", SUPERSEDED)
                    if arrival.further_requests and self._holder(key) is not None:
                        following = arrival.further_requests.pop(0)
                        self._at(following._replace(time=max(now, following.time)), _REQUEST, "request", arrival)
                        return
                case "queue":
                    self._evolve(key, lock.queue(state, request.job, wanted, shard=request.plan.shard), now)
                    return
                case reason:
                    self._end(arrival, now, "skipped", reason)
                    return
        if holder is None:
            events = lock.acquire(self._lock(key), request.job, wanted, ttl=lock.ttl(request), shard=key[1])
            self._evolve(key, events, now)
            self._admit(arrival, now + arrival.taking)

    def _holder(self, key: _Key) -> Arrival | None:
        name = self._lock(key).holder
        return None if name is None else self._arrivals.get((key[0], name))

    def _admit(self, arrival: Arrival, now: datetime) -> None:
        outcome, request = arrival.outcome, arrival.request
        outcome.status, outcome.admitted_at, begin = "running", now, begin_of(request, now)
        if request is not None and self.slots.may_hold_back(request):
            self._at(Moment(begin, UNRECORDED), _LATER, "task", arrival)
            return
        outcome.started_at = None if arrival.starting is None else begin + arrival.starting
        self._end_at(arrival, now)

    def _end(self, arrival: Arrival, now: datetime, status: Status, reason: str | None) -> None:
        outcome, request = arrival.outcome, arrival.request
        outcome.status, outcome.reason, outcome.ended_at = status, reason, now
        del self._arrivals[arrival.key]
        if outcome.started_at is not None and outcome.started_at > now:
            outcome.started_at = None
        if request is not None and self.slots.may_hold_back(request):
            self.slots.free(_name(arrival))
            self._fill(request.plan.steps[0].queue, now)
        key = outcome.job, outcome.shard
        if self._lock(key).holder == outcome.execution_id:
            self._hand_on(key, now)

    def _hand_on(self, key: _Key, now: datetime) -> None:
        """Hand a free lock to the first execution that waits and is not over."""
        while (first := self._lock(key).waiting.first) is not None:
            self._evolve(key, lock.acquire(self._lock(key), key[0], first, ttl=lock.GRACE_S, shard=key[1]), now)
            arrival = self._arrivals.get((key[0], first.execution_id))
            if arrival is not None:
                self._admit(arrival, now + arrival.handing_over)
                return

    def _fill(self, queue: str, now: datetime) -> None:
        for name in self.slots.fill(queue, now):
            job, _, execution_id = name.rpartition("/")
            arrival = self._arrivals[job, execution_id]
            arrival.outcome.started_at = now
            running = arrival.holding - (arrival.starting or timedelta())
            self._at(Moment(now + running, UNRECORDED), _LATER, "end", arrival)
        if queue not in self._fills_at and (again := self.slots.fills_again_at(queue, now)) is not None:
            self._fills_at[queue] = again
            self._at(Moment(again, UNRECORDED), _LATER, "fill", queue)

    def _expect(self, arrival: Arrival) -> None:
        self._arrivals[arrival.key] = arrival
        if arrival.needs_lock_at is not None and not arrival.outcome.found_lock_held:
            self._at(arrival.needs_lock_at, _REQUEST, "request", arrival)
        if arrival.ends_unadmitted is not None:
            self._at(arrival.ends_unadmitted, _LATER, "end-unadmitted", arrival)

    def _end_at(self, arrival: Arrival, admitted_at: datetime) -> None:
        end = max(admitted_at, begin_of(arrival.request, admitted_at) + arrival.holding)
        self._at(Moment(end, arrival.end_sequence), _LATER, "end", arrival)

    def _at(self, moment: Moment, phase: int, action: Action, of: Arrival | str) -> None:
        self._number += 1
        heappush(self._events, (*moment, phase, self._number, action, of))

    def _lock(self, key: _Key) -> Lock:
        return self._locks.get(key, lock.initial)

    def _evolve(self, key: _Key, facts: Iterable[Message], now: datetime) -> None:
        for fact in facts:
            self._sequence += 1
            self._locks[key] = lock.evolve(self._lock(key), Recorded(fact, "", self._sequence, now))


def _name(arrival: Arrival) -> str:
    return f"{arrival.outcome.job}/{arrival.outcome.execution_id}"
