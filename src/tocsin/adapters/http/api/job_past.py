"""`/v1/jobs/{name}/backfill` and `/revisions`: run past occurrences, and go back to earlier definitions."""

from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime, BaseModel, Field

from ....domain.access import Permission
from ....domain.text import counted
from ....services.operations import backfill
from ....services.operations.backfill import Order, Span
from ....services.operations.errors import OperationError as NotPossible
from ....services.timeline import JobRevision, revisions_of
from ..auth.security import Author, Reader, actor, permitted
from ..middleware.idempotency import IdempotentRoute, forget_key
from .dependencies import Calculate, Here, Precondition, Reason, ReasonText, shown_as
from .jobs import JobDetails, JobName, define, job_details
from .problems import documented, not_found
from .timeline import timeline_reader

MAX_PER_REQUEST: Final = 1_000
"""Executions of a request; a longer backfill takes several requests, each for a part of the period."""
MAX_LISTED: Final = 100
RATE_PER_S: Final = 1_000.0
"""Executions appended per second; the job's lock and its workers set the pace of the runs."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)


class BackfillRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """The period: occurrences of the job's current schedule in [start, end)."""

    start: AwareDatetime
    end: AwareDatetime | None = None
    """The default is now."""
    only_missing: bool = False
    """Only occurrences that did not fire, or were skipped because a run was active."""
    order: Order = "oldest"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_\-]*$", max_length=64)] | None = None
    """A repeated backfill of the same name creates no execution twice; the default name is the period."""
    dry_run: bool = False
    reason: ReasonText | None = None


class Backfilled(BaseModel, use_attribute_docstrings=True):
    """The executions requested, or with `dry_run` planned."""

    job: str
    name: str
    named: int
    """Occurrences of the schedule in the period."""
    fired: int
    missing: int
    count: int
    """Executions that the backfill creates."""
    instants: list[datetime]
    """The first of them, in the order of their creation."""
    requested: int
    dry_run: bool


@router.post("/{name}/backfill", status_code=202, operation_id="backfillJob", responses=documented(404, 409))
async def backfill_job(
    here: Here,
    caller: Author,
    calculate: Calculate,
    request: Request,
    name: JobName,
    body: BackfillRequest,
    reason: Reason = None,
) -> Backfilled:
    """Run a job for occurrences of the past.

    Each execution has its own scheduled time, and they run in turn under the job's lock.
    """
    permitted(caller, Permission.REGISTER)(await here.registry.job(name))
    now = here.clock.now()
    span = Span(body.start, body.end or now, only_missing=body.only_missing, order=body.order)
    planned = await backfill.plan(here.stored, here.registry, name, span, now=now, name=body.name, calculate=calculate)
    if len(planned.instants) > MAX_PER_REQUEST and not body.dry_run:
        raise NotPossible(
            f"the backfill has {counted(len(planned.instants), 'execution')}; a request may have {MAX_PER_REQUEST:,}. Split the period"
        )
    done = 0
    if body.dry_run:
        forget_key(request)
    else:
        cause = body.reason or reason
        async for _ in backfill.begin(here.log, planned, here.clock, rate=RATE_PER_S, by=actor(caller), reason=cause):
            done += 1
    return shown_as(
        Backfilled,
        planned,
        count=len(planned.instants),
        instants=list(islice(planned.instants, MAX_LISTED)),
        requested=done,
        dry_run=body.dry_run,
    )


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
