"""`/ojs/v1/admin`: what operators and dashboards read and do (ojs-admin-api)."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from fastapi import Path, Query, Request
from pydantic import AwareDatetime, BaseModel, Field

from ....domain.access import Principal
from ....domain.agent import AgentRecord, AgentState
from ....domain.events import JobState
from ....domain.execution_record import Status
from ....ports import recorded_upto
from ....ports.summaries import QueueCounts
from ....services.agents import REMEDY_OF_MQ
from ....services.operations.errors import NotFound
from ....services.operations.event_waiter import EXECUTIONS
from ....services.queues import PERIOD, QueueDetails, count, find, purge
from ....subjects import Stream
from ..api.agents import require_reached
from ..api.dependencies import Components, Here, Reason
from ..api.problems import Problem
from ..auth.security import HistoryReader, Reader, Replayer, SharedOperator, Triggerer, actor
from ..auth.visibility import seen_agents
from . import batches, dead_letters, job_filter, job_view, jobs, protocol
from .batches import BulkRoute
from .job_filter import Pages
from .job_view import Json
from .protocol import Body, OptionalBody, ojs_router, refused
from .queues import STATES, checked_name, config_of, measured, status_of, switch_queue, warnings_on

SUMMARY: Final = (
    *("id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "scheduled_at"),
    *("started_at", "completed_at", "cancelled_at", "discarded_at", "workflow_id"),
)
"""The fields of a job in a list."""
TIMES: Final = ("enqueued_at", *(name for name in SUMMARY if name.endswith("_at")))
PURGED: Final = ["available"]
"""The states of the jobs that a purge covers."""
CATCH_UP_PAUSES_S: Final = (0.01, 0.02, 0.04, 0.08)
"""Pauses between looks whether the history has what was stored before a request. Then the answer is a moment old."""
DEFAULT_PER_PAGE: Final = 20
WORKER_STATES: Final = {
    AgentState.ENABLED: "running",
    AgentState.DISABLED: "quiet",
    AgentState.DRAINING: "quiet",
    AgentState.LOST: "stale",
}
STATUSES: Final[Mapping[JobState | None, Sequence[Status | None]]] = {
    None: (None,),
    **dict.fromkeys(STATES, job_filter.OPEN),
    "completed": ("completed", "running", "failed", "cancelled"),
    "discarded": ("failed", "running", "completed", "cancelled"),
    "cancelled": ("cancelled", "failed", "completed"),
}
"""The statuses of executions that may have jobs in a state. Those of ended jobs after the first are of workflows."""
_NEW_NAMES: Final = {"since": "enqueued_after", "until": "enqueued_before"}
"""Fields of a filter that have another name in ojs-bulk-operations."""
_CHANGED: Final[Json] = {
    "filter": {"type": "object", "minProperties": 1},
    "confirm": {"type": "boolean"},
    "cursor": {"type": ["string", "null"]},
    "idempotency_key": {"type": "string", "maxLength": 256},
}

QueueName: TypeAlias = Annotated[str, Path(description="The name of the queue.")]
WorkerId: TypeAlias = Annotated[str, Path(alias="id", description="The id of the worker process.", max_length=255)]
Page: TypeAlias = Annotated[int, Query(ge=1, le=10_000, description="The page, counted from 1.")]
PerPage: TypeAlias = Annotated[int, Query(ge=1, le=100, description="Items of a page.")]

T = TypeVar("T")

router = ojs_router("/ojs/v1/admin", 404, 409, route_class=BulkRoute)
"""Its paths for several jobs come before those with an id, which would match them too."""


class JobList(BaseModel, use_attribute_docstrings=True):
    """The parameters of a list of jobs."""

    queue: Annotated[str | None, Field(max_length=255)] = None
    """Return jobs of this queue only."""
    state: JobState | None = None
    """Return jobs in this state only."""
    type: Annotated[str | None, Field(max_length=255)] = None
    """Return jobs of this type only; with `*` at the end, of types that begin so."""
    since: AwareDatetime | None = None
    """Return jobs created after this time only."""
    until: AwareDatetime | None = None
    """Return jobs created before this time only."""
    page: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The page of the jobs that were found, counted from 1."""
    per_page: Annotated[int, Field(ge=1, le=100)] = 20
    """Jobs of a page."""
    sort: Literal["created_at", "scheduled_at", "priority"] = "created_at"
    """The field by which the jobs that were found are sorted."""
    order: Literal["asc", "desc"] = "desc"
    """The order of the jobs that were found."""
    cursor: Annotated[str | None, Field(max_length=1_000)] = None
    """Search further executions: `next_cursor` of an answer."""

    def matches(self, job: Json) -> bool:
        created_at = datetime.fromisoformat(job["created_at"])
        return (
            self.queue in {None, job["queue"]}
            and self.state in {None, job["state"]}
            and (self.type is None or job_filter.is_of_type(self.type, job["type"]))
            and (self.since is None or created_at > self.since)
            and (self.until is None or created_at < self.until)
        )

    def place(self, job: Json) -> tuple[bool, Any, str]:
        """Return the place of a job in the order: the lowest without the field."""
        value = job.get(self.sort)
        return value is not None, value if value is not None else 0, job["id"]


Listed: TypeAlias = Annotated[JobList, Query()]
JobId: TypeAlias = Annotated[str, Path(alias="id", description="The id of the job.")]


@router.get("/jobs", operation_id="adminListJobs")
async def list_jobs(here: Here, caller: HistoryReader, wanted: Listed) -> Json:
    """List jobs, also those of workflows.

    A request searches the newest executions, up to about 2,000 jobs, or for 10 seconds. `total` counts the jobs found in them, and `next_cursor`
    continues the search; it is null if nothing is left.
    """
    await soon_current(here)
    pages = job_filter.execution_pages(here, caller, STATUSES[wanted.state], wanted.cursor)
    return await _listed(here, caller, wanted, pages, with_workflows=True)


@router.get("/dead-letter", operation_id="adminListDeadJobs")
async def list_dead(here: Here, caller: HistoryReader, wanted: Listed) -> Json:
    """List jobs that failed permanently and are not resolved, without those of workflows.

    A request searches as that for jobs does.
    """
    await soon_current(here)
    pages = job_filter.dead_letter_pages(here, caller, wanted.cursor)
    return await _listed(here, caller, wanted, pages, with_workflows=False)


async def _listed(here: Components, caller: Principal, wanted: JobList, pages: Pages, *, with_workflows: bool) -> Json:
    found = dict[str, Json]()

    def take(job: Json) -> bool:
        if wanted.matches(job):
            found[job["id"]] = {name: job[name] for name in SUMMARY if name in job}
        return True

    following = await job_filter.search(here, caller, pages, take, with_workflows=with_workflows)
    ordered = sorted(found.values(), key=wanted.place, reverse=wanted.order == "desc")
    shown, pagination = paged(ordered, wanted.page, wanted.per_page)
    return {"items": shown, "pagination": {**pagination, "next_cursor": following}}


@router.post(
    "/jobs/bulk/retry",
    operation_id="adminBulkRetry",
    openapi_extra=protocol.body_schema("filter", "confirm", **_CHANGED),
)
async def bulk_retry(here: Here, caller: Replayer, request: Request, body: Body) -> Json:
    """Run the dead letters of a filter again, at most 1,000.

    `next_cursor` continues, and is null at the end.
    """
    given = _filter(body, job_filter.RETRIABLE)
    return await _changed("retry", *batches.to_retry(here, caller, request, given), body.get("cursor"))


@router.post(
    "/jobs/bulk/cancel",
    operation_id="adminBulkCancel",
    openapi_extra=protocol.body_schema("filter", "confirm", **_CHANGED),
)
async def bulk_cancel(here: Here, caller: Triggerer, request: Request, body: Body) -> Json:
    """Cancel the jobs of a filter that wait, at most 1,000.

    `next_cursor` continues, and is null at the end.
    """
    given = _filter(body, job_filter.CANCELLABLE)
    return await _changed("cancel", *batches.to_cancel(here, caller, request, given), body.get("cursor"))


@router.get("/jobs/{id}", operation_id="adminGetJob")
async def show_job(here: Here, caller: HistoryReader, job_id: JobId) -> Json:
    """Show a job with its errors, its result and its times."""
    match = await jobs.visible_match(here, caller, job_id)
    job = job_view.job(match.facts, job_id=job_id, step=job_id.partition(":")[2] or None)
    times = {name: job.get(name) for name in TIMES}
    return {**job, "errors": job.get("errors", []), "result": job.get("result"), "metadata": times}


@router.post("/jobs/{id}/cancel", operation_id="adminCancelJob", openapi_extra=protocol.body_schema(optional=True))
async def cancel_job(here: Here, caller: Triggerer, _: OptionalBody, job_id: JobId) -> Json:
    """Cancel a job that has not ended."""
    return {"job": await jobs.cancel_job(here, caller, job_id)}


@router.post("/jobs/{id}/retry", operation_id="adminRetryJob", openapi_extra=protocol.body_schema(optional=True))
@router.post(
    "/dead-letter/{id}/retry", operation_id="adminRetryDeadJob", openapi_extra=protocol.body_schema(optional=True)
)
async def retry_job(here: Here, caller: Replayer, request: Request, _: OptionalBody, job_id: JobId) -> Json:
    """Run a permanently failed job again. Its attempts start at 1."""
    return {"job": await dead_letters.retry_job(here, caller, request, job_id)}


def _filter(body: Json, states: Sequence[JobState]) -> object:
    require_confirmation(body)
    given = body.get("filter")
    if not isinstance(given, dict):
        return given
    for name in given.keys() & _NEW_NAMES.keys():
        if _NEW_NAMES[name] in given:
            raise refused(
                f"filter.{name}", f"must be absent beside `{_NEW_NAMES[name]}`, which means the same", given[name]
            )
        if not job_filter.is_instant(given[name]):
            raise refused(f"filter.{name}", job_filter.INSTANT, given[name])
    renamed = {_NEW_NAMES.get(name, name): value for name, value in given.items()}
    if "state" not in given or isinstance(state := given["state"], list):
        return renamed
    if state not in states:
        raise refused(
            "filter.state", f"must be one of {', '.join(f'`{each}`' for each in states)}, or an array of them", state
        )
    return {**renamed, "state": [state]}


async def _changed(action: str, change: batches.Change, select: batches.Select | None, cursor: object) -> Json:
    if select is None:
        raise refused("filter", job_filter.REQUIRED)
    selection = await select(cursor)
    problems = await batches.problems_of_each(selection.ids, change)
    failures = [
        {"job_id": id_, "error": problem.detail}
        for id_, problem in zip(selection.ids, problems, strict=True)
        if problem is not None
    ]
    return {
        "action": action,
        "matched": len(selection.ids),
        "succeeded": len(selection.ids) - len(failures),
        "failed": len(failures),
        "errors": failures,
        "next_cursor": selection.cursor,
    }


def paged(items: Sequence[T], page: int, per_page: int) -> tuple[Sequence[T], Json]:
    """Return the items of a page, and the description of the page."""
    begin = (page - 1) * per_page
    return items[begin : begin + per_page], {"total": len(items), "page": page, "per_page": per_page}


async def soon_current(here: Components) -> None:
    """Wait briefly for the history, so that an answer has what was stored just now."""
    await recorded_upto(here.history, Stream.LOG, await here.log.tail(EXECUTIONS), CATCH_UP_PAUSES_S)


def require_confirmation(body: Json) -> None:
    """Check that a request confirms that it changes many jobs (ojs-admin-api §4)."""
    if body.get("confirm") is not True:
        raise refused("confirm", "must be true, because the request changes all jobs that match", body.get("confirm"))


@router.get("/queues", operation_id="adminListQueues")
async def list_queues(here: Here, caller: Reader, page: Page = 1, per_page: PerPage = DEFAULT_PER_PAGE) -> Json:
    """List the queues with the number of their jobs by state."""
    shown, pagination = paged(await here.queues(caller), page, per_page)
    await soon_current(here)
    async with here.job_searches.turn(caller.party):
        counts = await count(here.history.summaries, here.clock, [queue.name for queue in shown])
    return {"items": list(map(_item, shown, counts)), "pagination": pagination}


@router.get("/queues/{name}", operation_id="adminGetQueue")
async def show_queue(here: Here, caller: Reader, name: QueueName) -> Json:
    """Show a queue with its configuration, which is that of the settings."""
    checked = checked_name(caller, name)
    await soon_current(here)
    queue, counts = await measured(here, caller, checked)
    return {**_item(queue, counts), "configuration": config_of(here, checked)}


@router.post("/queues/{name}/pause", operation_id="adminPauseQueue")
async def pause_queue(here: Here, caller: SharedOperator, name: QueueName, reason: Reason = None) -> Json:
    """Pause a queue: no job is handed out, and new jobs are accepted.

    A queue that does not exist yet is paused too, and the answer has `warnings` (an extension). A caller that is bound to namespaces gets
    404 for it.
    """
    paused = _paused(await switch_queue(here, caller, name, reason, paused=True))
    return {**paused, **await warnings_on(here, caller, name)}


@router.post("/queues/{name}/resume", operation_id="adminResumeQueue")
async def resume_queue(here: Here, caller: SharedOperator, name: QueueName, reason: Reason = None) -> Json:
    """Resume a queue: jobs are handed out again."""
    return _paused(await switch_queue(here, caller, name, reason, paused=False))


@router.delete(
    "/queues/{name}/jobs",
    operation_id="adminPurgeQueue",
    openapi_extra=protocol.body_schema(
        "states",
        "confirm",
        states={"type": "array", "items": {"type": "string", "enum": PURGED}},
        confirm={"type": "boolean"},
    ),
)
async def purge_queue(here: Here, caller: SharedOperator, name: QueueName, body: Body, reason: Reason = None) -> Json:
    """Cancel the jobs that wait in a queue now.

    Ended jobs are evidence, and are not deleted. The answer has the number of jobs that it covers, and comes before all of them are cancelled.
    """
    require_confirmation(body)
    if body.get("states") != PURGED:
        raise refused("states", 'must be `["available"]`: no other jobs are purged', body.get("states"))
    if body.get("older_than") is not None:
        raise refused("older_than", "must be absent: a purge covers all jobs that wait", body["older_than"])
    known = await here.queues(caller)
    purged = await purge(here.queue_decisions(caller), find(checked_name(caller, name), known), reason=reason)
    return {"purged_count": (purged.waiting or 0) if purged.changed else 0, "states": PURGED}


@router.get("/stats", operation_id="adminStats")
async def stats(here: Here, caller: Reader) -> Json:
    """Count the queues, the workers and the jobs by state that the caller reaches.

    The number of jobs may be a second old, because callers share a count.
    """
    known = {queue.name for queue in await here.queues(caller)}
    await soon_current(here)
    counts = [counts for name, counts in (await here.queue_counts.answer()).items() if name in known]
    agents = await _workers(here, caller)
    return {
        "queues": len(known),
        "workers": len(agents),
        "jobs": {state: sum(each.states.get(state, 0) for each in counts) for state in STATES},
        "throughput": _throughput(counts),
        "uptime_seconds": round(time.monotonic() - here.began),
    }


def _item(queue: QueueDetails, counts: QueueCounts) -> Json:
    return {
        "name": queue.name,
        "state": status_of(queue),
        "counts": {state: counts.states.get(state, 0) for state in STATES},
        "throughput": _throughput([counts]),
        **_paused(queue),
    }


def _throughput(counts: Sequence[QueueCounts]) -> dict[str, float]:
    def per_minute(*states: JobState) -> float:
        ended = sum(each.ended.get(state, 0) for each in counts for state in states)
        return round(ended / (PERIOD.total_seconds() / 60), 4)

    return {
        "processed_per_minute": per_minute("completed", "discarded"),
        "failed_per_minute": per_minute("discarded"),
    }


def _paused(queue: QueueDetails) -> Json:
    since = None if queue.paused is None else job_view.instant(queue.paused.since)
    return {"name": queue.name, "paused": since is not None, **({} if since is None else {"paused_at": since})}


@router.get("/workers", operation_id="adminListWorkers")
async def list_workers(here: Here, caller: Reader, page: Page = 1, per_page: PerPage = DEFAULT_PER_PAGE) -> Json:
    """List the worker processes: agents, workers over HTTP, and executors of hip-62's queue."""
    known = await _workers(here, caller)
    shown, pagination = paged(known, page, per_page)
    states = [WORKER_STATES[record.state] for record in known]
    summary = {state: states.count(state) for state in ("running", "quiet", "stale")}
    return {
        "items": list(map(_worker_item, shown)),
        "summary": {"total": len(known), **summary},
        "pagination": pagination,
    }


@router.get("/workers/{id}", operation_id="adminGetWorker")
async def show_worker(here: Here, caller: Reader, worker_id: WorkerId) -> Json:
    """Show a worker process with the executions whose jobs it has."""
    record = await _worker(here, caller, worker_id)
    jobs = dict.fromkeys(held.partition(".")[0] for held in record.held)
    return {**_worker_item(record), "active_executions": list(jobs)}


@router.post("/workers/{id}/quiet", operation_id="adminQuietWorker")
async def quiet(here: Here, caller: SharedOperator, worker_id: WorkerId, reason: Reason = None) -> Json:
    """Let a worker finish its jobs and take no more.

    An agent drains. A worker over HTTP is disabled, and the answer to its next heartbeat says so. Executors of hip-62's queue go on.
    """
    record = await _worker(here, caller, worker_id)
    if record.kind == "mq":
        raise Problem(409, "conflict", f"worker {worker_id} does not register, so it cannot be drained. {REMEDY_OF_MQ}")
    await require_reached(here, caller, worker_id)
    registry, take = here.agents, here.registry.room.of_caller(caller.reached)
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
    return seen_agents(caller, await here.agents.agents())


def _worker_item(record: AgentRecord) -> Json:
    slots = record.slots if record.slots is not None else record.max_concurrent_jobs
    return {
        "id": record.agent_id,
        "name": record.name,
        "kind": record.kind,
        "hostname": record.host,
        "state": WORKER_STATES[record.state],
        "queues": record.queues,
        "concurrency": slots,
        "active_jobs": len(record.held),
        "version": record.version,
        "metadata": record.labels,
        **({} if record.heard_at is None else {"last_heartbeat_at": job_view.instant(record.heard_at)}),
        **({} if record.since is None else {"changed_at": job_view.instant(record.since)}),
    }
