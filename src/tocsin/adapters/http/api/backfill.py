"""`/v1/jobs/{name}/backfill`: runs a job for instants of the past."""

from datetime import datetime
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ....domain.access import Permission
from ....services.operations import backfill
from ....services.operations.backfill import Order, Span
from ....services.operations.errors import OperationError as NotPossible
from ..auth.security import Author, actor, permitted
from ..middleware.idempotency import IdempotentRoute
from .dependencies import Here, Reason, ReasonText
from .jobs import JobName
from .problems import documented

AT_ONCE: Final = 1_000
"""Executions that one request asks for: more are several requests, each of a part of the time."""
NAMED: Final = 100
FAST: Final = 1_000.0
"""Executions a second; the lock of the job, and its executors, set the pace."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)


class BackfillRequest(BaseModel):
    """Which instants: those in [start, end) that the job's schedule of now names."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    start: AwareDatetime
    end: AwareDatetime | None = None
    """By default now."""
    only_missing: bool = False
    """Only those that did not fire, or were skipped for an active run."""
    order: Order = "oldest"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_\-]*$", max_length=64)] | None = None
    """Run twice under one name it makes nothing twice; by default its span."""
    dry_run: bool = False
    reason: ReasonText | None = None


class Backfilled(BaseModel):
    """What was asked for, or with `dry_run` would be."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    job: str
    name: str
    named: int
    """Instants that the schedule names in the time."""
    fired: int
    missing: int
    count: int
    """Executions that it makes."""
    instants: list[datetime]
    """The first of them, in the order in which they are asked for."""
    asked: int
    dry_run: bool


@router.post("/{name}/backfill", status_code=202, operation_id="backfillJob", responses=documented(404, 409))
async def backfill_job(
    here: Here, caller: Author, name: JobName, asked: BackfillRequest, reason: Reason = None
) -> Backfilled:
    """Run a job for instants of the past, each with its own scheduled time; they wait for each other under its lock."""
    permitted(caller, Permission.REGISTER)(await here.registry.job(name))
    now = here.clock.now()
    span = Span(asked.start, asked.end or now, only_missing=asked.only_missing, order=asked.order)
    planned = await backfill.plan(here.stored, here.registry, name, span, now=now, name=asked.name)
    if len(planned.instants) > AT_ONCE and not asked.dry_run:
        raise NotPossible(
            f"{len(planned.instants):,} executions: ask for {AT_ONCE:,} at once at most, each time for a part of the time"
        )
    done = 0
    if not asked.dry_run:
        why = asked.reason or reason
        async for _ in backfill.begin(here.log, planned, here.clock, rate=FAST, by=actor(caller), reason=why):
            done += 1
    return Backfilled(
        job=planned.job,
        name=planned.name,
        named=planned.named,
        fired=planned.fired,
        missing=planned.missing,
        count=len(planned.instants),
        instants=list(islice(planned.instants, NAMED)),
        asked=done,
        dry_run=asked.dry_run,
    )
