"""`/ojs/v1/admin/jobs` and `/dead-letter`: jobs by state, queue, type and time (ojs-admin-api §7, §8, §11)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import Path, Query, Request
from pydantic import AwareDatetime, BaseModel, Field

from .....domain.access import Principal
from .....domain.events import JobState
from .....domain.execution_record import Status
from ...api.dependencies import Components, Here
from ...api.problems import Problem
from ...auth.security import HistoryReader, Replayer, Triggerer
from .. import batches, dead_letters, job_filter, job_view, jobs, protocol
from ..batches import BulkRoute
from ..job_filter import Pages
from ..job_view import Json
from ..protocol import Body, OptionalBody, ojs_router, refused
from .queues import paged, require_confirmation, soon_current

SUMMARY: Final = (
    *("id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "scheduled_at"),
    *("started_at", "completed_at", "cancelled_at", "discarded_at", "workflow_id"),
)
"""The fields of a job in a list."""
TIMES: Final = (
    *("created_at", "enqueued_at", "started_at", "scheduled_at", "completed_at", "cancelled_at", "discarded_at"),
)
STATUSES: Final[Mapping[JobState | None, Sequence[Status | None]]] = {
    None: (None,),
    "available": job_filter.OPEN,
    "scheduled": job_filter.OPEN,
    "retryable": job_filter.OPEN,
    "active": job_filter.OPEN,
    "pending": job_filter.OPEN,
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
    require_confirmation(body)
    chosen = job_filter.read_to_retry(_filter(body, job_filter.RETRIABLE))
    selection = await job_filter.dead(here, caller, chosen, body.get("cursor"))
    retry = protocol.changing(request, partial(dead_letters.retry_job, here, caller, request))
    return _changed("retry", selection, await batches.problems_of_each(selection.ids, retry))


@router.post(
    "/jobs/bulk/cancel",
    operation_id="adminBulkCancel",
    openapi_extra=protocol.body_schema("filter", "confirm", **_CHANGED),
)
async def bulk_cancel(here: Here, caller: Triggerer, request: Request, body: Body) -> Json:
    """Cancel the jobs of a filter that wait, at most 1,000.

    `next_cursor` continues, and is null at the end.
    """
    require_confirmation(body)
    chosen = job_filter.read_to_cancel(_filter(body, job_filter.CANCELLABLE))
    selection = await job_filter.cancellable(here, caller, chosen, body.get("cursor"))
    cancel = protocol.changing(request, partial(jobs.cancel_job, here, caller, states=chosen.state))
    return _changed("cancel", selection, await batches.problems_of_each(selection.ids, cancel))


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
async def retry_job(here: Here, caller: Replayer, request: Request, _: OptionalBody, job_id: JobId) -> Json:
    """Run a permanently failed job again, if it is a dead letter."""
    return {"job": await dead_letters.retry_job(here, caller, request, job_id)}


@router.post(
    "/dead-letter/{id}/retry", operation_id="adminRetryDeadJob", openapi_extra=protocol.body_schema(optional=True)
)
async def retry_dead(here: Here, caller: Replayer, request: Request, _: OptionalBody, job_id: JobId) -> Json:
    """Run a permanently failed job again. Its attempts start at 1."""
    return {"job": await dead_letters.retry_job(here, caller, request, job_id)}


def _filter(body: Json, states: Sequence[JobState]) -> object:
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


def _changed(action: str, selection: job_filter.Selection, problems: Sequence[Problem | None]) -> Json:
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
