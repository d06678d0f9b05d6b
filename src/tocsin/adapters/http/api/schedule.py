"""`/v1/schedule` lists the next occurrences, and `/v1/explain` explains a schedule."""

from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from ....domain.schedule import DstPolicy, explain
from ..auth.security import Reader
from .dependencies import Here

MAX_COUNTED: Final = 100_000
"""Occurrences that are counted for a job: more than a day with an occurrence every second has."""

router = APIRouter(prefix="/v1", tags=["schedule"])


class JobFireTimes(BaseModel):
    """The occurrences of a job in the window: their number, and the first of them."""

    job: str
    schedule: str
    timezone: str
    count: int
    fire_times: list[datetime]


class Upcoming(BaseModel):
    """The occurrences from now on, by job."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    start: datetime = Field(alias="from")
    until: datetime
    jobs: list[JobFireTimes]


@router.get("/schedule", operation_id="getSchedule")
async def get_schedule(
    here: Here,
    caller: Reader,
    hours: Annotated[float, Query(gt=0, le=24 * 366, description="The window, in hours from now.")] = 24,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Occurrences listed for each job.")] = 100,
    job: Annotated[str | None, Query(description="Return this job only.")] = None,
) -> Upcoming:
    """List the occurrences of the next hours by job."""
    now = here.clock.now()
    until = now + timedelta(hours=hours)
    jobs = []
    for known in await here.registry.jobs():
        if not caller.may_see(known) or (job is not None and known.name != job):
            continue
        times = list(islice(takewhile(lambda at: at <= until, known.fire_times(now)), MAX_COUNTED))
        if times:
            definition = known.definition
            jobs.append(
                JobFireTimes(
                    job=known.name,
                    schedule=definition.schedule or "",
                    timezone=definition.timezone,
                    count=len(times),
                    fire_times=times[:limit],
                )
            )
    return Upcoming(start=now, until=until, jobs=jobs)


class ExplainRequest(BaseModel):
    """A schedule as a job definition has it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    schedule: Annotated[str, Field(max_length=1_000)]
    """A cron expression, `@every …`, `at …` or an English phrase."""
    timezone: Annotated[str, Field(max_length=255)] | None = None
    """An IANA zone; null: the zone with which the phrase ends, or UTC."""
    dst: DstPolicy | None = None
    count: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Number of occurrences to list."""


class LocalInstant(BaseModel):
    """An instant in UTC and in the schedule's timezone."""

    utc: datetime
    local: datetime


class ScheduleExplanation(BaseModel):
    """The meaning of a schedule."""

    text: str
    timezone: str
    meaning: str
    expressions: list[str]
    next: list[LocalInstant]
    clock_changes: list[str]
    warnings: list[str]
    timezone_database: str


@router.post("/explain", operation_id="explainSchedule")
async def explain_schedule(here: Here, caller: Reader, body: ExplainRequest) -> ScheduleExplanation:
    """Explain a schedule, and list its next occurrences."""
    _ = caller
    explanation: dict[str, Any] = asdict(
        explain(body.schedule, body.timezone, here.clock.now(), dst=body.dst, n=body.count)
    )
    return ScheduleExplanation.model_validate(explanation)
