"""The open tasks of queues, and the claims of agents.

It is a fold of the events of steps. A task is open from `dispatched` until an event says that it is claimed, or needs no worker. A claim
uses a slot of its agent, and counts for the limits of its task, until a report on it is stored, or its step goes on.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from .hold_up_time import HoldUpCause, stopped
from .namespaces import declared_of, namespace_of
from .open_task import LaneKey, OpenTask, StepKey
from .ownership import shard_resource
from .queue_backlog import HeldBack, HeldGroup
from .task_lanes import TaskLanes
from .task_offers import Offer

_REMEMBERED: Final = 10_000
"""The number of releases, of early reports and of ended claims that are remembered."""
NO_AGENT: Final = ""
"""In place of an agent's key: the worker is no agent."""


@dataclass(slots=True)
class AgentClaim:
    """A task that is claimed, and not over."""

    task: OpenTask
    agent: str
    """The agent that has it (`agent.agent_key`), or `NO_AGENT`."""
    delivery: int
    sequence: int
    epoch: int | None = None
    """The epoch of the agent as the owner of the task's resource; None: the task needs none."""
    handed_at: float = float("-inf")
    """When the task was last handed over, in seconds of the monotonic clock."""
    hand_overs: int = 0
    """The number of times that this matcher handed it over."""
    is_trial: bool = False
    """Whether it has a token of its agent's name (`stages/matcher/trials.py`)."""
    is_proved: bool = False
    """Whether its agent was seen to hold it, or it is over."""


class TaskBoard:
    """The open tasks of the queues, and all open claims."""

    def __init__(
        self,
        queue_limits: Mapping[str, int] | None = None,
        *,
        clock: Callable[[], float] = stopped,
    ) -> None:
        """Start without tasks.

        `queue_limits`: the number of tasks that workers may have, of queues where it is limited. `clock` returns seconds, and never
        goes back.
        """
        self._queue_limits = dict(queue_limits or {})
        self._namespaces: Mapping[str, int | None] = {}
        """The declared namespaces, and the number of tasks of their queues that workers may have."""
        self._free_shards: set[str] = set()
        """The shards that have no owner, so that any worker gets their tasks."""
        self._open = TaskLanes(clock=clock)
        self.waiting_rates = self._open.waiting_rates
        self.let_start = self._open.let_start
        self.forget_rates = self._open.forget_rates
        self.oldest_times = self._open.oldest_times
        self.owned = self._open.owned
        self._reserved: dict[StepKey, OpenTask] = {}
        self._purged: dict[StepKey, OpenTask] = {}
        """Tasks that no agent gets, because their queue was purged; their executions are to be cancelled."""
        self._purged_upto: dict[str, int] = {}
        self._claims: dict[StepKey, AgentClaim] = {}
        self._of_agent: dict[str, dict[StepKey, AgentClaim]] = {}
        self._suspects: dict[StepKey, AgentClaim] = {}
        self.suspects: Collection[AgentClaim] = self._suspects.values()
        """The open claims of tasks whose workers were lost before."""
        self._of_scope: dict[str, set[str]] = {}
        self._newest: dict[str, int] = {}
        self._repeated: OrderedDict[StepKey, tuple[int, int]] = OrderedDict()
        """The attempt and the next delivery of steps that were released."""
        self._ended: deque[AgentClaim] = deque(maxlen=_REMEMBERED)
        """Claims of agents that ended with their executions (`take_ended`)."""
        self._over: deque[tuple[AgentClaim, bool]] = deque(maxlen=_REMEMBERED)
        """Claims that are over, and whether each was released (`take_over`)."""

    def dispatch(self, task: OpenTask) -> None:
        """Open a task; it replaces an older task of its step."""
        key = task.key
        known = self._task_of(key)
        if known is not None and known.sequence >= task.sequence:
            return
        if known is not None:
            self._drop(key)
        attempt, delivery = self._repeated.pop(key, (0, 1))
        if attempt == task.attempt:
            task.delivery = delivery
        self._put(task)
        self._note(task, task.sequence)

    def claim(
        self,
        scope: str,
        step: str,
        attempt: int,
        *,
        delivery: int,
        sequence: int,
        agent: str | None,
        epoch: int | None = None,
    ) -> None:
        """Note a claim; without an `agent`, a worker that is no agent has it."""
        key = scope, step
        task = self._task_of(key)
        if task is None or task.attempt != attempt or sequence <= task.sequence:
            return
        self.see(scope, sequence)
        known = self._claims.get(key)
        if known is not None and known.sequence >= sequence:
            return
        self._drop(key)
        self._keep(AgentClaim(task, agent or NO_AGENT, delivery, sequence, epoch=epoch))

    def release(
        self, scope: str, step: str, attempt: int, *, delivery: int, sequence: int, was_lost: bool = False
    ) -> None:
        """Note that a claim ended before its attempt did; the task is dispatched again.

        `was_lost`: its worker was not heard any more. That is no reproach if it held the task.
        """
        claim = self._claims.get((scope, step))
        if claim is not None and claim.sequence < sequence:
            self._drop((scope, step), was_released=not (was_lost and claim.is_proved))
        self.end_step(scope, step, sequence=sequence)
        self._repeated[scope, step] = attempt, delivery + 1
        _trim(self._repeated)

    def end_step(self, scope: str, step: str, *, sequence: int) -> None:
        task = self._task_of((scope, step))
        if task is not None and task.sequence < sequence:
            self._drop((scope, step))
        self.see(scope, sequence)

    def end_execution(self, scope: str, *, is_completed: bool = False) -> None:
        """Withdraw the tasks of an execution; a sole step that completed needs no notice."""
        claims = [self._claims.get((scope, step)) for step in self._of_scope.get(scope, ())]
        if not is_completed or len(claims) > 1:
            self._ended.extend(claim for claim in claims if claim is not None and claim.agent != NO_AGENT)
        self.forget(scope)

    def forget(self, scope: str) -> None:
        """Forget an execution: its learned events are not stored after all."""
        for step in tuple(self._of_scope.get(scope, ())):
            self._drop((scope, step))

    def see(self, scope: str, sequence: int) -> None:
        """Note the newest event of an execution, if a task of it is known."""
        if scope in self._newest:
            self._newest[scope] = max(self._newest[scope], sequence)

    def free(self, shards: Collection[str]) -> None:
        """Let any worker get the tasks of shards, because these have no owner."""
        self._free_shards.update(shards)
        self._put_again(lambda task: task.shard in shards)

    def bind(self, shards: Collection[str]) -> None:
        """Let only the owners of shards get their tasks, as at the start."""
        if bound := self._free_shards.intersection(shards):
            self._free_shards -= bound
            self._put_again(lambda task: task.shard in bound)

    def _put_again(self, concerns: Callable[[OpenTask], bool]) -> None:
        for task in sorted(filter(concerns, self._open), key=lambda task: task.sequence):
            self._open.remove(task)
            self._put(task)

    def declare(self, namespaces: Mapping[str, int | None]) -> None:
        """Let declared namespaces take turns, and limit the tasks of each.

        The limit is the number of tasks that workers may have at a time; None: any number. A lower limit ends no task.
        """
        self._namespaces = dict(namespaces)

    def purge(self, queue: str, upto: int) -> None:
        """Give no agent the open tasks of a queue up to a sequence."""
        if upto <= self._purged_upto.get(queue, 0):
            return
        self._purged_upto[queue] = upto
        self._put_again(self._must_be_purged)

    def assign(
        self,
        offers: Iterable[Offer],
        *,
        limit: int,
        room: Mapping[str, int] | None = None,
        drains: bool = False,
    ) -> list[tuple[OpenTask, str]]:
        """Choose agents for up to `limit` tasks, and reserve the tasks (`TaskLanes.take`).

        `room`: the number of tasks that may start, of queues where more than their limit holds them back. `drains`: whether an agent gets
        nothing if a task that runs alone finds none without a task.
        """
        room_left = {queue: most - self._open.running_in(queue) for queue, most in self._queue_limits.items()}
        for queue, number in (room or {}).items():
            room_left[queue] = min(number, room_left.get(queue, number))
        assignments = self._open.take(
            offers, limit=limit, room=room_left, namespaces=self._namespace_room(), drains=drains
        )
        self._reserved |= {task.key: task for task, _ in assignments}
        return assignments

    def note_hold_ups(self, rate_room: Mapping[str, int], paused: Collection[str]) -> None:
        """Note what holds back the tasks of whole queues now.

        `rate_room`: the number of tasks that may start by the rate of their queue.
        """
        causes: dict[str, HoldUpCause] = {queue: "queue_rate" for queue, number in rate_room.items() if number < 1}
        full = self.full_namespaces()
        causes |= {queue: "namespace_limit" for queue in self._open.queues if namespace_of(queue) in full}
        limits = self._queue_limits.items()
        causes |= {queue: "queue_limit" for queue, most in limits if self._open.running_in(queue) >= most}
        causes |= dict.fromkeys(paused, "queue_paused")
        self._open.hold_up(causes)

    def choose(
        self,
        queues: Iterable[str],
        may_run: Callable[[str], bool],
        *,
        limit: int,
        room: Mapping[str, int] | None = None,
    ) -> list[OpenTask]:
        """Choose up to `limit` tasks for a worker that is no agent, and reserve them.

        The tasks of the first queue are chosen first, and in each queue as `TaskLanes.take` does. At most one is a suspect.
        """
        tasks: list[OpenTask] = []
        for queue in queues:
            functions = frozenset(filter(may_run, self._open.functions_in(queue)))
            if functions and (number := limit - len(tasks)) > 0 and not any(task.runs_alone for task in tasks):
                has_suspect = any(task.deaths for task in tasks)
                offer = Offer(NO_AGENT, (queue,), functions, number, used=len(tasks), has_suspect=has_suspect)
                tasks += [task for task, _ in self.assign([offer], limit=number, room=room)]
        return tasks

    def confirm(self, task: OpenTask, agent: str, *, sequence: int, epoch: int | None = None) -> AgentClaim:
        """Replace a reservation by its claim, which is stored."""
        known = self._claims.get(task.key)
        if known is not None and known.sequence == sequence:  # the fold was faster
            return known
        newest = self.newest(task.scope)
        self._drop(task.key)
        claim = AgentClaim(task, agent, task.delivery, sequence, epoch)
        self._keep(claim)
        self.see(task.scope, newest)
        return claim

    def put_back(self, task: OpenTask) -> None:
        """Open a reserved task again, before the other tasks of its job."""
        if self._reserved.get(task.key) is task:
            del self._reserved[task.key]
            self._open.vacate(task)
            self._put(task, is_first=True)

    def withdraw(self, task: OpenTask) -> None:
        """Remove a task that needs no worker, unless a newer task replaced it."""
        if self._task_of(task.key) is task:
            self._drop(task.key)

    def refuse(self, scope: str, step: str, agents: frozenset[str]) -> None:
        if (task := self._open.get((scope, step))) is not None:
            self._open.refuse(task, agents)

    def take_ended(self) -> list[AgentClaim]:
        """Return the claims of agents that ended with their executions since the last call."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def take_over(self) -> list[tuple[AgentClaim, bool]]:
        """Return the claims that are over since the last call, and whether each was released."""
        return [self._over.popleft() for _ in range(len(self._over))]

    def is_reserved(self, task: OpenTask) -> bool:
        """Return whether a task is still reserved, because no event removed it."""
        return self._reserved.get(task.key) is task

    def is_purged(self, task: OpenTask) -> bool:
        """Return whether the execution of a task is still to be cancelled."""
        return self._purged.get(task.key) is task

    def is_open(self, task: OpenTask) -> bool:
        """Return whether a task is open, and not reserved."""
        return self._open.get(task.key) is task

    def is_limited(self, task: OpenTask) -> bool:
        """Return whether a limit of its job, its queue or its namespace counts a task."""
        namespace = declared_of(task.queue, self._namespaces)
        is_namespace_limited = namespace is not None and self._namespaces[namespace] is not None
        return task.group is not None or task.queue in self._queue_limits or is_namespace_limited

    def full_namespaces(self) -> frozenset[str]:
        """Return the namespaces of whose queues workers have as many tasks as they may."""
        return frozenset(name for name, room in self._namespace_room().items() if room is not None and room < 1)

    def is_contested(self, task: OpenTask) -> bool:
        """Return whether an earlier event of the log may forbid a claim of a task."""
        return task.ownable is not None or self.is_limited(task)

    def is_beyond_limit(self, claim: AgentClaim) -> bool:
        """Return whether earlier claims alone reach a limit of a claim.

        This happens only if two matchers lead at once. Both find the same claim beyond the limit, because the log has one order.
        """
        return any(
            most is not None
            and running > most
            and most <= sum(c.sequence < claim.sequence and counts(c.task) for c in self._claims.values())
            for most, running, counts in self._limits_of(claim.task)
        )

    def _limits_of(self, task: OpenTask) -> Iterator[tuple[int | None, int, Callable[[OpenTask], bool]]]:
        """Yield each limit of a task, with the number and the test of running tasks."""
        queue = task.queue
        if task.group is not None:
            yield task.limit, self._open.running_of(task.group), lambda other: other.group == task.group
        if (namespace := declared_of(queue, self._namespaces)) is not None:
            running = self._open.running_by_namespace({namespace}).get(namespace, 0)
            yield self._namespaces[namespace], running, lambda other: namespace_of(other.queue) == namespace
        yield self._queue_limits.get(queue), self._open.running_in(queue), lambda other: other.queue == queue

    def held_back(self, *, most: int) -> Mapping[str, HeldBack]:
        """Return the tasks that limits of jobs hold back, by queue.

        Of each queue, `most` groups with the most tasks are named.
        """
        by_queue: dict[str, list[HeldGroup]] = {}
        for (queue, group, limit), waiting in self._open.held_groups().items():
            held = HeldGroup(group.job, limit, self._open.running_of(group), waiting, group.key, group.value)
            by_queue.setdefault(queue, []).append(held)
        return {
            queue: HeldBack(
                waiting=sum(group.waiting for group in groups),
                groups=tuple(sorted(groups, key=lambda group: (-group.waiting, group.job, group.value or ""))[:most]),
            )
            for queue, groups in by_queue.items()
        }

    def newest(self, scope: str) -> int:
        """Return the sequence of the newest known event of an execution."""
        return self._newest.get(scope, 0)

    def used_slots(self, agent: str) -> int:
        return len(self._of_agent.get(agent, ()))

    def claims_of(self, agent: str) -> tuple[AgentClaim, ...]:
        """Return the open claims of an agent; `NO_AGENT`: of all workers that are no agents."""
        return tuple(self._of_agent.get(agent, {}).values())

    def deadly_jobs(self, deaths: int) -> Mapping[str, set[str]]:
        """Return the jobs with a task that lost so many workers or more, by queue."""
        jobs: dict[str, set[str]] = {}
        for task in (*self._open.suspects(), *(claim.task for claim in self.suspects)):
            if task.deaths >= deaths:
                jobs.setdefault(task.queue, set()).add(task.job)
        return jobs

    def claim_of(self, scope: str, step: str) -> AgentClaim | None:
        return self._claims.get((scope, step))

    def purged(self, *, limit: int) -> tuple[OpenTask, ...]:
        """Return up to `limit` tasks whose executions are to be cancelled."""
        return tuple(islice(self._purged.values(), limit))

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(agent for agent in self._of_agent if agent != NO_AGENT)

    @property
    def waiting(self) -> Mapping[LaneKey, int]:
        """The number of open tasks by queue and function."""
        return self._open.numbers

    @property
    def running(self) -> Mapping[str, int]:
        return Counter(claim.task.queue for claim in self._claims.values())

    @property
    def purging(self) -> Mapping[str, int]:
        """The number of purged tasks whose executions are to be cancelled, by queue."""
        return Counter(task.queue for task in self._purged.values())

    def __iter__(self) -> Iterator[OpenTask]:
        """Yield every task that is not over."""
        return chain(
            self._open, self._reserved.values(), self._purged.values(), (c.task for c in self._claims.values())
        )

    def __len__(self) -> int:
        return len(self._open)

    def _namespace_room(self) -> Mapping[str, int | None]:
        running = self._open.running_by_namespace(self._namespaces) if self._namespaces else {}
        return {name: None if most is None else most - running.get(name, 0) for name, most in self._namespaces.items()}

    def _put(self, task: OpenTask, *, is_first: bool = False) -> None:
        if self._must_be_purged(task):
            self._purged[task.key] = task
        else:
            if task.shard is not None:
                task.resource = None if task.shard in self._free_shards else shard_resource(task.shard)
            self._open.put(task, is_first=is_first)

    def _must_be_purged(self, task: OpenTask) -> bool:
        return task.sequence <= self._purged_upto.get(task.queue, 0)

    def _keep(self, claim: AgentClaim) -> None:
        key = claim.task.key
        self._claims[key] = claim
        if claim.task.deaths:
            self._suspects[key] = claim
        self._open.occupy(claim.task)
        self._of_agent.setdefault(claim.agent, {})[key] = claim
        self._note(claim.task, claim.sequence)

    def _note(self, task: OpenTask, sequence: int) -> None:
        self._of_scope.setdefault(task.scope, set()).add(task.step)
        self._newest[task.scope] = max(self._newest.get(task.scope, 0), sequence)

    def _task_of(self, key: StepKey) -> OpenTask | None:
        claim = self._claims.get(key)
        task = self._open.get(key) or self._reserved.get(key) or self._purged.get(key)
        return claim.task if task is None and claim is not None else task

    def _drop(self, key: StepKey, *, was_released: bool = False) -> None:
        if (task := self._open.get(key)) is not None:
            self._open.remove(task)
        if (reserved := self._reserved.pop(key, None)) is not None:
            self._open.vacate(reserved)
        self._purged.pop(key, None)
        if (claim := self._claims.pop(key, None)) is not None:
            self._suspects.pop(key, None)
            self._open.vacate(claim.task)
            self._over.append((claim, was_released))
            of_agent = self._of_agent[claim.agent]
            del of_agent[key]
            if not of_agent:
                del self._of_agent[claim.agent]
        steps = self._of_scope.get(key[0], set())
        steps.discard(key[1])
        if not steps:
            self._of_scope.pop(key[0], None)
            self._newest.pop(key[0], None)


def _trim(entries: "OrderedDict[StepKey, Any]") -> None:
    if len(entries) > _REMEMBERED:
        entries.popitem(last=False)
