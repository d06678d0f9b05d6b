"""`/v1/jobs/{name}/durations` and `/calendar`: how long a job runs, and its outcomes by day."""

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....services.timeline.durations import CalendarDay, DurationBucket, read_calendar, read_durations
from ..auth.security import HistoryReader
from .dependencies import Calculate, Here
from .jobs import JobName
from .problems import documented
from .timeline import BucketLimit, Since, Until, earlier, timeline_reader, window_of

USUAL_BUCKETS: Final = 100
USUAL_DAYS: Final = timedelta(days=90)

router = APIRouter(prefix="/v1/jobs", tags=["inquiries"])


class JobDurations(BaseModel, use_attribute_docstrings=True, from_attributes=True):
    """Durations over time; buckets without executions are left out."""

    buckets: list[DurationBucket]
    sampled: bool
    """Whether percentiles and maxima are those of a sample; up to 20,000 executions are all read."""


class JobCalendar(BaseModel):
    """The outcomes of a job by local day."""

    timezone: str
    days: list[CalendarDay]


@router.get("/{name}/durations", operation_id="getDurations", responses=documented(404))
async def get_durations(
    here: Here,
    caller: HistoryReader,
    calculate: Calculate,
    name: JobName,
    since: Since = None,
    until: Until = None,
    buckets: BucketLimit = USUAL_BUCKETS,
) -> JobDurations:
    """Show percentiles of a job's durations over time."""
    window = await window_of(here, since, until, buckets)
    ledger = await timeline_reader(here, calculate).ledger(name, partial(here.visibility.seen_definitions, caller))
    return JobDurations.model_validate(await read_durations(here.history, ledger, window, calculate))


@router.get("/{name}/calendar", operation_id="getCalendar", responses=documented(404))
async def get_calendar(
    here: Here,
    caller: HistoryReader,
    calculate: Calculate,
    name: JobName,
    since: Annotated[
        datetime | None, Query(description="The beginning. The default is 90 days before `until`.")
    ] = None,
    until: Annotated[datetime | None, Query(description="The end, exclusive. The default is now.")] = None,
    timezone: Annotated[str | None, Query(description="The zone of the days. The default is that of the job.")] = None,
) -> JobCalendar:
    """Count a job's executions by local day and outcome, up to 400 days."""
    end = until or await here.log.now()
    window = await window_of(here, since or earlier(end, USUAL_DAYS), end, USUAL_BUCKETS)
    ledger = await timeline_reader(here, calculate).ledger(name, partial(here.visibility.seen_definitions, caller))
    zone = timezone or ledger.timezone
    days = await read_calendar(here.history, ledger, window, zone, calculate)
    return JobCalendar(timezone=zone, days=days)
