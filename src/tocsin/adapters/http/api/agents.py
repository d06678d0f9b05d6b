"""`/v1/agents` and `/v1/queues`: show and control agents, their grants, and queues."""

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from ....domain.access import Principal
from ....domain.agent import MAX_QUEUES, AgentRecord, DeclaredShard
from ....domain.agent_grants import MAX_PATTERNS
from ....domain.definition.partition import MAX_SHARDS
from ....services import queues
from ....services.agents import GrantAnswer, GrantVerb, change_grants
from ....services.operations.errors import NotFound
from ....services.queue_decisions import PurgeAnswer
from ....services.queues import QueueDetails, find
from ..auth.security import Reader, SharedOperator, actor, outside_namespaces
from ..auth.visibility import seen_agents
from ..middleware.idempotency import IdempotentRoute, forget_key
from .dependencies import Cause, ChangeRequest, Components, Here
from .problems import Problem, documented

router = APIRouter(prefix="/v1/agents", tags=["agents"], route_class=IdempotentRoute)

AgentName: TypeAlias = Annotated[
    str, Path(description="The agent's name.", pattern=r"^[A-Za-z0-9_-]+$", max_length=128)
]


WorkerName: TypeAlias = Annotated[str, Path(description="The name or the id of a worker.", max_length=255)]


class AgentList(BaseModel):
    """Agents, sorted by name and start; `next` is the cursor of the following page."""

    agents: list[AgentRecord]
    next: str | None = None


class AgentsDrained(BaseModel):
    """The processes that began to drain."""

    agent: str
    action: Literal["drained"] = "drained"
    agents: list[AgentRecord]


class AgentsSwitched(BaseModel):
    """Whether the request changed the state of the name."""

    agent: str
    action: Literal["disabled", "enabled"]
    changed: bool


class GrantRequest(ChangeRequest):
    """Queues, functions and shards to allow or to revoke."""

    queues: Annotated[tuple[Annotated[str, Field(max_length=255)], ...], Field(max_length=MAX_QUEUES)] = ()
    """Names of queues; `*`: every queue."""
    functions: Annotated[tuple[Annotated[str, Field(max_length=255)], ...], Field(max_length=MAX_PATTERNS)] = ()
    """Functions; `*` stands for any characters."""
    shards: Annotated[tuple[DeclaredShard, ...], Field(max_length=MAX_SHARDS)] = ()
    """Ids of shards that the agents may own; `*`: every shard."""


@router.get("", operation_id="listAgents")
async def list_agents(
    here: Here,
    caller: Reader,
    after: Annotated[
        str | None,
        Query(max_length=300, description="Return agents that sort after this `name.id`: `next` of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 1_000,
) -> AgentList:
    """List the registered worker processes, HTTP workers, and executors of hip-62's queue.

    For a caller that is bound to namespaces, only those that serve no other queues.
    """
    place = None if after is None else tuple(after.rpartition(".")[::2])
    seen = seen_agents(caller, await here.agents.agents())
    records = [record for record in seen if place is None or _place(record) > place]
    page = records[:limit]
    return AgentList(agents=page, next=".".join(_place(page[-1])) if len(records) > limit else None)


@router.get("/{name}", operation_id="getAgents", responses=documented(404))
async def get_agents(here: Here, caller: Reader, name: WorkerName) -> AgentList:
    """Show the agents of a name, or one worker by its id."""
    if not caller.is_bound:
        return AgentList(agents=list(await here.agents.agents(name)))
    seen = seen_agents(caller, await here.agents.agents())
    of_name = [record for record in seen if name in {record.name, record.agent_id}]
    if not of_name:
        raise _missing(name)
    return AgentList(agents=of_name)


@router.post("/{name}/drain", operation_id="drainAgents", responses=documented(404))
async def drain_agents(here: Here, caller: SharedOperator, name: WorkerName, cause: Cause) -> AgentsDrained:
    """Let workers finish their tasks and take no more.

    `name` is the name of several processes, or the id of one. To a worker over HTTP, the answer to its next heartbeat says that it shall end.
    """
    await require_reached(here, caller, name)
    take = here.registry.room.of_caller(caller.reached)
    drained = await here.agents.drain(name, by=actor(caller), reason=cause, take=take)
    return AgentsDrained(agent=name, agents=list(drained))


@router.post("/{name}/disable", operation_id="disableAgents", responses=documented(404))
async def disable_agents(here: Here, caller: SharedOperator, name: WorkerName, cause: Cause) -> AgentsSwitched:
    """Let agents of a name take no tasks, also after a restart.

    `name` may also be the name or the id of workers over HTTP.
    """
    return await _switched(here, caller, name, cause, enabled=False)


@router.post("/{name}/enable", operation_id="enableAgents", responses=documented(404))
async def enable_agents(here: Here, caller: SharedOperator, name: WorkerName, cause: Cause) -> AgentsSwitched:
    """Let agents of a name take tasks again."""
    return await _switched(here, caller, name, cause, enabled=True)


@router.post("/{name}/allow", operation_id="allowAgents", responses=documented(409))
async def allow_agents(here: Here, caller: SharedOperator, name: AgentName, body: GrantRequest) -> GrantAnswer:
    """Let agents of a name get the tasks of some functions in some queues.

    Without `functions`, all functions of these queues. The first of `shards` limits the shards that they may own.
    """
    return await _granted(here, caller, "allow", name, body)


@router.post("/{name}/revoke", operation_id="revokeAgents", responses=documented(409))
async def revoke_agents(here: Here, caller: SharedOperator, name: AgentName, body: GrantRequest) -> GrantAnswer:
    """Take grants from agents of a name.

    Without `queues`, those of all queues, and without `functions`, all functions of these queues; with `shards` alone, only these. Running
    tasks finish.
    """
    return await _granted(here, caller, "revoke", name, body)


async def _switched(
    here: Components, caller: Principal, name: str, cause: str | None, *, enabled: bool
) -> AgentsSwitched:
    await require_reached(here, caller, name)
    take = here.registry.room.of_caller(caller.reached)
    changed = await here.agents.switch(
        name, enabled=enabled, by=actor(caller), reason=cause, take=take, is_bound=caller.is_bound and enabled
    )
    return AgentsSwitched(agent=name, action="enabled" if enabled else "disabled", changed=changed)


async def _granted(here: Components, caller: Principal, verb: GrantVerb, name: str, body: GrantRequest) -> GrantAnswer:
    by = actor(caller)
    if caller.is_bound:
        await _require_grantable(here, caller, name, body)
    take = here.registry.room.of_caller(caller.reached, is_refused=verb == "allow")
    answer = await change_grants(
        here.log, verb, name, body.queues, body.functions, shards=body.shards, by=by, reason=body.reason, take=take
    )
    if not caller.is_bound or answer.grants is None:
        return answer
    return replace(answer, grants=tuple(grant for grant in answer.grants if caller.reaches(grant.queue)))


async def _require_grantable(here: Components, caller: Principal, name: str, body: GrantRequest) -> None:
    """Check that a bound caller may change these grants."""
    await require_reached(here, caller, name)
    # A worker over HTTP chooses its name, which may be that of the absent agents of others: a first grant would limit these.
    if all(record.kind != "agent" for record in await here.agents.agents(name)):
        raise _missing(name)
    if body.shards or not body.queues:
        detail = (
            "this token is bound to namespaces: name queues of them, and no shards, which belong to the installation"
        )
        raise Problem(403, "outside-namespace", detail)
    for queue in body.queues:
        if not caller.reaches(queue):
            raise outside_namespaces(caller, "queue", queue)


async def require_reached(here: Components, caller: Principal, name: str) -> None:
    """Check that a caller sees all agents of a name, or one agent by id."""
    if not caller.is_bound:
        return
    of_name = [record for record in await here.agents.agents() if name in {record.name, record.agent_id}]
    if not of_name or len(seen_agents(caller, of_name)) < len(of_name):
        raise _missing(name)


def _missing(name: str) -> NotFound:
    return NotFound(f"No agent has the name or id {name!r}. `tocsin agents list` shows all agents.")


def _place(record: AgentRecord) -> tuple[str, str]:
    return record.name, record.agent_id


queue_router = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=IdempotentRoute)

QueueName: TypeAlias = Annotated[str, Path(description="The queue's name.", max_length=255)]


class QueueList(BaseModel):
    """Queues, sorted by name; `next` is the cursor of the following page."""

    queues: list[QueueDetails]
    next: str | None = None


class QueueSwitched(BaseModel):
    """Whether the request changed the state of the queue."""

    queue: str
    action: Literal["paused", "resumed"]
    changed: bool


@queue_router.get("", operation_id="getQueues")
async def get_queues(
    here: Here,
    caller: Reader,
    after: Annotated[
        str | None,
        Query(max_length=255, description="Return queues that sort after this name: `next` of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 1_000,
) -> QueueList:
    """List the queues of the settings and of the jobs that the caller sees.

    Each has its transport, its tasks, the agents that serve it, and what operators decided about it.
    """
    known = [queue for queue in await here.queues(caller) if after is None or queue.name > after]
    page = known[:limit]
    return QueueList(queues=page, next=page[-1].name if len(known) > limit else None)


@queue_router.get("/{name}", operation_id="getQueue", responses=documented(404))
async def get_queue(here: Here, caller: Reader, name: QueueName) -> QueueDetails:
    """Show a queue."""
    return find(name, await here.queues(caller))


@queue_router.post("/{name}/pause", operation_id="pauseQueueTasks", responses=documented(404, 409))
async def pause(here: Here, caller: SharedOperator, name: QueueName, cause: Cause) -> QueueSwitched:
    """Let the tasks of a queue wait until it is resumed; running tasks finish."""
    changed = await switch(here, caller, name, paused=True, reason=cause)
    return QueueSwitched(queue=name, action="paused", changed=changed)


@queue_router.post("/{name}/resume", operation_id="resumeQueueTasks", responses=documented(404, 409))
async def resume(here: Here, caller: SharedOperator, name: QueueName, cause: Cause) -> QueueSwitched:
    """Hand out the tasks of a paused queue again."""
    changed = await switch(here, caller, name, paused=False, reason=cause)
    return QueueSwitched(queue=name, action="resumed", changed=changed)


@queue_router.post("/{name}/purge", operation_id="purgeQueue", responses=documented(404, 409))
async def purge(
    here: Here,
    caller: SharedOperator,
    request: Request,
    name: QueueName,
    cause: Cause,
    *,
    dry_run: Annotated[bool, Query(description="Only answer how many tasks wait.")] = False,
) -> PurgeAnswer:
    """Cancel the executions whose tasks wait in a queue now.

    Tasks that a worker has, tasks that the MQ bridge has handed over, and tasks that are dispatched later are not touched. The answer
    comes before all of them are cancelled.
    """
    if dry_run:
        forget_key(request)
    queue = find(name, await here.queues(caller))
    return await queues.purge(here.queue_decisions(caller), queue, reason=cause, dry_run=dry_run)


async def switch(here: Components, caller: Principal, name: str, *, paused: bool, reason: str | None = None) -> bool:
    """Pause or resume a queue that the caller sees; return whether that changed anything."""
    queue = find(name, await here.queues(caller))
    return await here.queue_decisions(caller).switch(queue.name, paused=paused, reason=reason)
