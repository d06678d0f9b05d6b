"""`/v1/schedule`: what fires in the hours to come (hip-62, API Endpoints)."""

from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from ..auth.security import Reader
from .components import Here

ENOUGH: Final = 100_000
"""Instants that are counted for one job: more than one a second in a day."""

router = APIRouter(prefix="/v1/schedule", tags=["schedule"])


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


@router.get("", operation_id="getSchedule")
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
