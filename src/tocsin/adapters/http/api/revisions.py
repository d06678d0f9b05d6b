"""`/v1/jobs/{name}/revisions`: the changes to a definition, and the way back to an earlier one."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from ....services.timeline import JobRevision, revisions_of
from ..auth.security import Author, Reader
from ..middleware.idempotency import IdempotentRoute
from .dependencies import Calculate, Here, Precondition, Reason, ReasonText
from .jobs import JobDetails, JobName, define, job_details
from .problems import documented, not_found
from .timeline import timeline_reader

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)


class RevisionList(BaseModel, use_attribute_docstrings=True):
    """Revisions, newest first; `next` is the value of `before` for the following page."""

    revisions: list[JobRevision]
    next: int | None = None


class RollbackRequest(BaseModel, extra="forbid"):
    """The revision to go back to: the sequence of a `defined` event."""

    sequence: int = Field(ge=1, lt=2**63)
    reason: ReasonText | None = None


@router.get("/{name}/revisions", operation_id="listRevisions", responses=documented(404))
async def list_revisions(
    here: Here,
    caller: Reader,
    calculate: Calculate,
    name: JobName,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
    before: Annotated[
        int | None, Query(ge=1, lt=2**63, description="Return revisions with a smaller sequence only.")
    ] = None,
) -> RevisionList:
    """List the changes to a job's definition, newest first."""
    past = await timeline_reader(here, calculate).past(name, partial(here.visibility.seen_definitions, caller))
    rows = await calculate(lambda _: revisions_of(past, before=before, limit=limit + 1))
    shown = rows[:limit]
    return RevisionList(revisions=shown, next=shown[-1].sequence if len(rows) > limit else None)


@router.post("/{name}/rollback", operation_id="rollBackJob", responses=documented(404, 412))
async def roll_back_job(
    here: Here,
    caller: Author,
    calculate: Calculate,
    name: JobName,
    body: RollbackRequest,
    response: Response,
    precondition: Precondition,
    reason: Reason = None,
) -> JobDetails:
    """Register the definition of an earlier revision again, as a new revision.

    The rules are those of `PUT`.
    """
    past = await timeline_reader(here, calculate).past(name, partial(here.visibility.seen_definitions, caller))
    definition = past.definition(body.sequence)
    if definition is None:
        raise not_found("revision", str(body.sequence))
    await here.visibility.require_name(caller, definition.name)
    await define(here, caller, definition, precondition, body.reason or reason or f"back to {body.sequence}")
    return await job_details(here, calculate, name, response)
