"""`/v1/jobs/{name}/backfill`: run a job for occurrences of the past."""

from datetime import datetime
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import AwareDatetime, BaseModel, Field

from ....domain.access import Permission
from ....domain.text import counted
from ....services.operations import backfill
from ....services.operations.backfill import Order, Span
from ....services.operations.errors import OperationError as NotPossible
from ..auth.security import Author, actor, permitted
from ..middleware.idempotency import IdempotentRoute, forget_key
from .dependencies import Calculate, Here, Reason, ReasonText, shown_as
from .jobs import JobName
from .problems import documented

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
