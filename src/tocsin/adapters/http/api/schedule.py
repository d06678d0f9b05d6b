"""`/v1/schedule`: instants in the hours ahead. `/v1/explain`: the meaning of a schedule before it is registered."""

from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from ....domain.schedule import DstPolicy, explain
from ..auth.security import Reader
from .dependencies import Here

ENOUGH: Final = 100_000
"""Instants that are counted for one job: more than one a second in a day."""

router = APIRouter(prefix="/v1", tags=["schedule"])


class JobFireTimes(BaseModel):
    """The instants of one job in the window; `count` of them, of which the first are named."""

    job: str
    schedule: str
    timezone: str
    count: int
    fire_times: list[datetime]


class Upcoming(BaseModel):
    """What fires from now on."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    start: datetime = Field(alias="from")
    until: datetime
    jobs: list[JobFireTimes]


@router.get("/schedule", operation_id="getSchedule")
async def get_schedule(
    here: Here,
    caller: Reader,
    hours: Annotated[float, Query(gt=0, le=24 * 366, description="How far to look ahead.")] = 24,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Instants of each job that are named.")] = 100,
    job: Annotated[str | None, Query(description="Only of this job.")] = None,
) -> Upcoming:
    """Which jobs fire in the next 24 hours, and when, if nothing changes."""
    now = here.clock.now()
    until = now + timedelta(hours=hours)
    found = []
    for one in await here.registry.jobs():
        if not caller.may_see(one) or (job is not None and one.name != job):
            continue
        times = list(islice(takewhile(lambda at: at <= until, one.fire_times(now)), ENOUGH))
        if times:
            definition = one.definition
            found.append(
                JobFireTimes(
                    job=one.name,
                    schedule=definition.schedule or "",
                    timezone=definition.timezone,
                    count=len(times),
                    fire_times=times[:limit],
                )
            )
    return Upcoming(start=now, until=until, jobs=found)


class ExplainRequest(BaseModel):
    """A schedule, as a definition would write it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    schedule: Annotated[str, Field(max_length=1_000)]
    """Cron, `@every …`, `at …` or an English phrase."""
    timezone: Annotated[str, Field(max_length=255)] = "UTC"
    dst: DstPolicy | None = None
    count: Annotated[int, Field(ge=1, le=1_000)] = 5
    """How many instants to tell."""


class LocalInstant(BaseModel):
    """An instant in UTC and on the schedule's wall clock."""

    utc: datetime
    local: datetime


class ScheduleExplanation(BaseModel):
    """What a schedule was understood as."""

    text: str
    timezone: str
    meaning: str
    expressions: list[str]
    next: list[LocalInstant]
    clock_changes: list[str]
    warnings: list[str]
    timezone_database: str


@router.post("/explain", operation_id="explainSchedule")
async def explain_schedule(here: Here, caller: Reader, asked: ExplainRequest) -> ScheduleExplanation:
    """Say what a schedule is understood as, and when it fires next."""
    _ = caller
    told: dict[str, Any] = asdict(
        explain(asked.schedule, asked.timezone, here.clock.now(), dst=asked.dst, n=asked.count)
    )
    return ScheduleExplanation.model_validate(told)
