"""`/ojs/v1/admin/workers`: the worker processes, and what they have (ojs-admin-api §9)."""

from typing import Annotated, Final, TypeAlias

from fastapi import Path

from .....domain.access import Principal
from .....domain.agent import AgentRecord, AgentState
from .....services.agents import REMEDY_OF_MQ, AgentRegistry
from .....services.operations.errors import NotFound
from ...api.agents import require_reached
from ...api.dependencies import Components, Here, Reason
from ...api.problems import Problem
from ...auth.security import Reader, SharedOperator, actor
from ...auth.visibility import seen_agents
from .. import job_view
from ..batches import BulkRoute
from ..job_view import Json
from ..protocol import ojs_router
from .queues import DEFAULT_PER_PAGE, Page, PerPage, paged

STATES: Final = {
    AgentState.ENABLED: "running",
    AgentState.DISABLED: "quiet",
    AgentState.DRAINING: "quiet",
    AgentState.LOST: "stale",
}
WorkerId: TypeAlias = Annotated[str, Path(alias="id", description="The id of the worker process.", max_length=255)]

router = ojs_router("/ojs/v1/admin", 404, 409, route_class=BulkRoute)


@router.get("/workers", operation_id="adminListWorkers")
async def list_workers(here: Here, caller: Reader, page: Page = 1, per_page: PerPage = DEFAULT_PER_PAGE) -> Json:
    """List the worker processes: agents, workers over HTTP, and executors of hip-62's queue."""
    known = await _workers(here, caller)
    shown, pagination = paged(known, page, per_page)
    states = [STATES[record.state] for record in known]
    summary = {state: states.count(state) for state in ("running", "quiet", "stale")}
    return {
        "items": list(map(_item, shown)),
        "summary": {"total": len(known), **summary},
        "pagination": pagination,
    }


@router.get("/workers/{id}", operation_id="adminGetWorker")
async def show_worker(here: Here, caller: Reader, worker_id: WorkerId) -> Json:
    """Show a worker process with the executions whose jobs it has."""
    record = await _worker(here, caller, worker_id)
    jobs = dict.fromkeys(held.partition(".")[0] for held in record.held)
    return {**_item(record), "active_executions": list(jobs)}


@router.post("/workers/{id}/quiet", operation_id="adminQuietWorker")
async def quiet(here: Here, caller: SharedOperator, worker_id: WorkerId, reason: Reason = None) -> Json:
    """Let a worker finish its jobs and take no more.

    An agent drains. A worker over HTTP is disabled, and the answer to its next heartbeat says so. Executors of hip-62's queue go on.
    """
    record = await _worker(here, caller, worker_id)
    if record.kind == "mq":
        raise Problem(409, "conflict", f"worker {worker_id} does not register, so it cannot be drained. {REMEDY_OF_MQ}")
    await require_reached(here, caller, worker_id)
    registry, take = AgentRegistry(here.log, here.projections), here.registry.room.of_caller(caller.reached)
    if record.kind == "http":
        changed = await registry.switch(worker_id, enabled=False, by=actor(caller), reason=reason, take=take)
        return {"id": worker_id, "state": "quiet", "changed": changed}
    if await registry.drain(worker_id, by=actor(caller), reason=reason, take=take):
        return {"id": worker_id, "state": "quiet", "changed": True}
    return {"id": worker_id, "state": "stale" if record.state is AgentState.LOST else "quiet", "changed": False}


async def _worker(here: Components, caller: Principal, worker_id: str) -> AgentRecord:
    """Return the worker process with an id; a name is no id."""
    for record in await _workers(here, caller):
        if record.agent_id == worker_id:
            return record
    raise NotFound(f"no worker has the id {worker_id!r}. GET /ojs/v1/admin/workers lists all")


async def _workers(here: Components, caller: Principal) -> list[AgentRecord]:
    return seen_agents(caller, await AgentRegistry(here.log, here.projections).agents())


def _item(record: AgentRecord) -> Json:
    slots = record.slots if record.slots is not None else record.max_concurrent_jobs
    return {
        "id": record.agent_id,
        "name": record.name,
        "kind": record.kind,
        "hostname": record.host,
        "state": STATES[record.state],
        "queues": record.queues,
        "concurrency": slots,
        "active_jobs": len(record.held),
        "version": record.version,
        "metadata": record.labels,
        **({} if record.heard_at is None else {"last_heartbeat_at": job_view.instant(record.heard_at)}),
        **({} if record.since is None else {"changed_at": job_view.instant(record.since)}),
    }
