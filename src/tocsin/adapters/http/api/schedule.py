"""`/v1/schedule`, `/v1/explain` and `/v1/schedule/density`: occurrences, explanations and jobs that fire together."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ....domain.definition import upstream_jobs
from ....domain.schedule import DstPolicy, Explanation, explain
from ....services.calculations import Effort
from ....services.jobs import Job
from ....services.schedule_density import ScheduleDensity, density
from ..auth.security import Reader
from .dependencies import Calculate, Here
from .jobs import json_answer

MAX_COUNTED: Final = 100_000
"""Occurrences that are counted for a job: more than a day with an occurrence every second has."""
MAX_LISTED: Final = 10_000
"""Occurrences that an answer lists for all jobs together."""
FOLLOWING_SHARE: Final = 1 / 3
"""Share of the request's timeout in which all jobs are followed. The rest is for the calculation, and for waits."""

router = APIRouter(prefix="/v1", tags=["schedule"])


class JobFireTimes(BaseModel, use_attribute_docstrings=True):
    """The occurrences of a job in the window: their number, and the first of them."""

    job: str
    schedule: str
    timezone: str
    depends_on: list[str]
    """The jobs for whose runs each of these executions waits."""
    count: int
    """Their number, counted up to 100,000."""
    fire_times: list[datetime]
    truncated: bool
    """The job has more occurrences in the window than `fire_times` lists."""


class Upcoming(BaseModel, serialize_by_alias=True, validate_by_name=True, use_attribute_docstrings=True):
    """The occurrences from now on, by job."""

    start: datetime = Field(alias="from")
    until: datetime
    jobs: list[JobFireTimes]
    next: str | None = None
    """The cursor of the following page; null: there are no more jobs."""


@router.get("/schedule", operation_id="getSchedule", response_model=Upcoming)
async def get_schedule(
    here: Here,
    caller: Reader,
    calculate: Calculate,
    hours: Annotated[float, Query(gt=0, le=24 * 366, description="The window, in hours from now.")] = 24,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Occurrences listed for each job.")] = 100,
    job: Annotated[str | None, Query(description="Return this job only.")] = None,
    after: Annotated[
        str | None, Query(description="Return jobs whose names sort after this name: `next` of the previous page.")
    ] = None,
) -> Response:
    """List the occurrences of the next hours by job.

    A page lists at most 10,000 occurrences, and ends earlier if it takes a second to calculate.
    """
    now = here.clock.now()
    until = now + timedelta(hours=hours)
    jobs = [
        known
        for known in await here.registry.jobs()
        if caller.may_see(known) and (job is None or known.name == job) and (after is None or known.name > after)
    ]
    return json_answer(await calculate(lambda effort: _page(jobs, now, until, limit, effort)))


def _page(jobs: Sequence[Job], now: datetime, until: datetime, limit: int, effort: Effort) -> bytes:
    listed = 0
    rows = list[JobFireTimes]()
    last: str | None = None
    following: str | None = None
    for job in jobs:
        is_full = listed >= MAX_LISTED or effort.is_spent()
        if is_full and last is not None:
            following = last
            break
        last = job.name
        times = list[datetime]()
        for at in job.fire_times(now):
            if at > until or len(times) >= min(limit, MAX_LISTED - listed) or (times and effort.is_spent()):
                break
            times.append(at)
        if not times:
            continue
        listed += len(times)
        count = job.count(now, until, MAX_COUNTED)
        rows.append(
            JobFireTimes(
                job=job.name,
                schedule=job.definition.schedule or "",
                timezone=job.definition.timezone,
                depends_on=list(upstream_jobs(job.definition.depends_on)),
                count=count,
                fire_times=times,
                truncated=count > len(times),
            )
        )
    return Upcoming(start=now, until=until, jobs=rows, next=following).model_dump_json().encode()


class ExplainRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """A schedule as a job definition has it."""

    schedule: Annotated[str, Field(max_length=1_000)]
    """A cron expression, `@every …`, `at …` or an English phrase."""
    timezone: Annotated[str, Field(max_length=255)] | None = None
    """An IANA zone; null: the zone with which the phrase ends, or UTC."""
    dst: DstPolicy | None = None
    count: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Number of occurrences to list."""


@dataclass(frozen=True, slots=True)
class ScheduleExplanation(Explanation):
    """The meaning of a schedule."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    truncated: bool
    """`next` has fewer occurrences than requested, because they take more than a second to calculate."""


_EXPLANATION: Final = TypeAdapter(ScheduleExplanation)


@router.post("/explain", operation_id="explainSchedule", response_model=ScheduleExplanation)
async def explain_schedule(here: Here, _: Reader, calculate: Calculate, body: ExplainRequest) -> Response:
    """Explain a schedule, and list its next occurrences."""
    now = here.clock.now()
    return json_answer(await calculate(lambda effort: _explanation(body, now, effort)))


def _explanation(body: ExplainRequest, now: datetime, effort: Effort) -> bytes:
    is_truncated = False

    def is_enough() -> bool:
        nonlocal is_truncated
        is_truncated = effort.is_spent()
        return is_truncated

    found = explain(body.schedule, body.timezone, now, dst=body.dst, n=body.count, is_enough=is_enough)
    same = {field.name: getattr(found, field.name) for field in fields(found)}
    return _EXPLANATION.dump_json(ScheduleExplanation(**same, truncated=is_truncated))


_DENSITY: Final = TypeAdapter(ScheduleDensity)


@router.get("/schedule/density", operation_id="getScheduleDensity", response_model=ScheduleDensity)
async def get_schedule_density(
    here: Here,
    caller: Reader,
    calculate: Calculate,
    hours: Annotated[int, Query(ge=1, le=168, description="The window, in hours from now.")] = 24,
    buckets: Annotated[int, Query(ge=1, le=336, description="Parts of equal length.")] = 48,
    threshold: Annotated[int, Query(ge=2, le=100_000, description="The least number of jobs of a herd.")] = 10,
) -> Response:
    """Count the instants of the next hours, and find jobs that fire together.

    For herds of such jobs, it suggests quieter minutes.
    """
    now, window = here.clock.now(), timedelta(hours=hours)
    until = here.clock.monotonic() + FOLLOWING_SHARE * here.settings.server.request_timeout
    jobs = await here.registry.jobs()
    # After a start, all jobs are added once, and the next calculation goes further. The watch of jobs follows them
    # meanwhile: an older list would undo its work.
    while not await calculate(partial(here.schedule_groups.follow, jobs)) and here.clock.monotonic() < until:
        jobs = await here.registry.jobs()

    def answer(effort: Effort) -> bytes:
        groups, is_complete = here.schedule_groups.seen(jobs, caller.may_see, effort)
        found = density(groups, now, window, buckets, threshold, effort, is_complete=is_complete)
        return _DENSITY.dump_json(found)

    return json_answer(await calculate(answer))
