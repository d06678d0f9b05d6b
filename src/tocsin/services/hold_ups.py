"""Reasons why tasks of an execution wait for a worker, a moment ago."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import ValidationError

from ..domain.agent import AgentRecord
from ..domain.definition import LEADER_ONLY
from ..domain.events import Dispatched, Message, PlannedStep, Recorded, TaskLimit, unfold
from ..domain.execution import fold, planned_step, waiting_steps
from ..domain.namespaces import namespace_of
from ..domain.queue_backlog import QueueBacklog, counted_tasks
from ..ports import EventLog, Projections
from ..subjects import Bucket, token
from . import shards
from .agents import AgentRegistry
from .queue_decisions import QueuePause, pauses_of
from .unserved import WorkerSearch

HoldUpKind: TypeAlias = Literal[
    "queue_paused",
    "no_worker",
    "no_function",
    "no_grant",
    "job_limit",
    "key_limit",
    "queue_limit",
    "namespace_limit",
    "queue_rate",
    "leader",
    "shard",
]


@dataclass(frozen=True, slots=True)
class HoldUp:
    """The first reason why no worker gets a task."""

    step: str
    queue: str
    kind: HoldUpKind
    """`queue_paused`, `no_worker` (none reads the queue), `no_function` (none has the function), `no_grant` (an agent has it, and may not
    get it), `job_limit`, `key_limit` and `queue_limit` (concurrency), `namespace_limit` (its quota
    `max_running`), or `queue_rate`.

    `leader`: only the executor leader gets it. `shard`: only the owner of its shard gets it."""
    message: str
    limit: int | None = None
    """The concurrency limit of the job or the key."""
    running: int | None = None
    """The number of tasks that workers have, and the limit counts."""
    pause: QueuePause | None = None
    """Who paused the queue, when and why."""


class HoldUpReader:
    """Reads what holds back tasks."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        *,
        bridged: Collection[str] = (),
        narrow: Callable[[Sequence[AgentRecord]], Sequence[AgentRecord]] = lambda agents: agents,
    ) -> None:
        """`bridged`: the queues of executors outside, of which only a pause is known.

        `narrow` returns the agents of which the answer may speak.
        """
        self._log = log
        self._projections = projections
        self._bridged = frozenset(bridged)
        self._narrow = narrow

    async def of(self, facts: Sequence[Recorded[Message]]) -> tuple[HoldUp, ...]:
        """Return what holds back each waiting task of an execution with these events.

        A task that only waits its turn is left out.
        """
        state = fold(facts)
        steps = waiting_steps(state)
        if not steps:
            return ()
        planned = [planned_step(state, step) for step in steps]
        queues = tuple(dict.fromkeys(step.queue for step in planned))
        pauses = await pauses_of(self._log, queues)
        backlogs = {queue: await self._backlog(queue) for queue in queues}
        known = await AgentRegistry(self._log, self._projections).agents()
        agents = self._narrow(known)
        workers = WorkerSearch(agents)
        limits = _limits_of(facts)
        shard = state.request.plan.shard
        owner = None if shard is None else (await shards.owners_of(self._log)).get(shard)
        found: list[HoldUp] = []
        for step in planned:
            queue, limit = step.queue, limits.get(step.name)
            if (pause := pauses.get(queue)) is not None:
                found.append(HoldUp(step.name, queue, "queue_paused", f"queue {queue} is {pause}", pause=pause))
            elif queue not in self._bridged and (
                hold_up := _held_up(state.request.job, step, limit, backlogs[queue], workers)
            ):
                found.append(hold_up)
            elif state.request.plan.job_class == LEADER_ONLY:
                message = shards.wait_for_leader(agents, queue, step.function)
                found.append(HoldUp(step.name, queue, "leader", message))
            elif owner is not None and shard is not None and queue not in self._bridged:
                key = owner.name, owner.agent_id
                is_hidden = key in _keys(known) and key not in _keys(agents)
                message = (
                    f"waits for the owner of shard {shard}, which does not read queue {queue}"
                    if is_hidden
                    else shards.wait_for_owner(agents, owner, shard, queue, step.function)
                )
                found.append(HoldUp(step.name, queue, "shard", message))
        return tuple(found)

    async def _backlog(self, queue: str) -> QueueBacklog:
        entry = await self._projections.get(Bucket.QUEUES, token(queue))
        try:
            return QueueBacklog(queue=queue) if entry is None else QueueBacklog.model_validate_json(entry[0])
        except ValidationError:
            return QueueBacklog(queue=queue)  # of a newer version


def _keys(agents: Sequence[AgentRecord]) -> set[tuple[str, str]]:
    return {(agent.name, agent.agent_id) for agent in agents}


def _limits_of(facts: Sequence[Recorded[Message]]) -> dict[str, TaskLimit | None]:
    tasks = (fact.message.task for fact in unfold(facts) if isinstance(fact.message, Dispatched))
    return {task.step: task.concurrency for task in tasks}


def _held_up(
    job: str, step: PlannedStep, limit: TaskLimit | None, backlog: QueueBacklog, workers: WorkerSearch
) -> HoldUp | None:
    missing = workers.lacks(job, step.queue, step.function)
    if missing is not None:
        kind: HoldUpKind = (
            "no_worker" if missing.function is None else "no_grant" if missing.ungranted is not None else "no_function"
        )
        return HoldUp(step.name, step.queue, kind, str(missing))
    return _by_group(job, step, limit, backlog) or _by_queue(step, backlog)


def _by_group(job: str, step: PlannedStep, limit: TaskLimit | None, backlog: QueueBacklog) -> HoldUp | None:
    if limit is None or backlog.held_back is None:
        return None
    wanted = job, limit.key, limit.value, limit.limit
    for group in backlog.held_back.groups:
        if (group.job, group.key, group.value, group.limit) == wanted:
            tasks = counted_tasks(group.job, group.key, group.value)
            return HoldUp(
                step.name,
                step.queue,
                "job_limit" if group.key is None else "key_limit",
                f"concurrency limit {group.limit:,} of {tasks} ({group.running:,} run)",
                limit=group.limit,
                running=group.running,
            )
    return None


def _by_queue(step: PlannedStep, backlog: QueueBacklog) -> HoldUp | None:
    if backlog.held_by == "concurrency":
        message = f"concurrency limit of queue {step.queue} ({backlog.running:,} run)"
        return HoldUp(step.name, step.queue, "queue_limit", message, running=backlog.running)
    if backlog.held_by == "namespace":
        message = f"quota max_running of namespace {namespace_of(step.queue)}"
        return HoldUp(step.name, step.queue, "namespace_limit", message)
    if backlog.held_by == "rate":
        return HoldUp(step.name, step.queue, "queue_rate", f"rate of queue {step.queue}")
    return None
