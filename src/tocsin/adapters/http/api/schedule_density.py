"""`/v1/schedule/density`: when the jobs fire, and which of them fire together."""

from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict

from ....services.calculations import Effort
from ....services.schedule_density import DensityBucket, Herd, Suggestion, density
from ..auth.security import Reader
from .dependencies import Calculate, Here
from .jobs import json_answer

router = APIRouter(prefix="/v1", tags=["schedule"])
FOLLOWING_SHARE: Final = 1 / 3
"""Share of the request's timeout in which all jobs are followed. The rest is for the calculation, and for waits."""


class ScheduleDensity(BaseModel):
    """The instants of all jobs from now on."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    start: datetime
    until: datetime
    buckets: list[DensityBucket]
    herds: list[Herd]
    """The 20 largest herds. Jobs that fire more than once a minute are in none."""
    suggestions: list[Suggestion]
    """Up to 50 schedules that would make the herds smaller."""
    truncated: bool
    """The calculation takes longer than a second, and leaves out the jobs with the rarest schedules.

    Or the server has just started, and has not read all jobs yet.
    """


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
        return ScheduleDensity.model_validate(asdict(found)).model_dump_json().encode()

    return json_answer(await calculate(answer))
