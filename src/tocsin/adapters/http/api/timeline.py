"""`/v1/jobs/{name}/timeline`: every instant of a job with its decision, from hours to months."""

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....services.past_reader import MAX_SHOWN, IgnoredEvent, read_ignored, shown
from ....services.timeline import MAX_BUCKETS, Timeline, TimelineReader, Window
from ....services.timeline.reader import CalendarDay, JobDurations, read_calendar, read_durations
from ....services.trigger_test import GivenEvent, TriggerAnswer, try_event
from ..auth.security import HistoryReader, Reader, visible
from .dependencies import Calculate, Components, Here
from .jobs import JobName
from .problems import documented

AHEAD: Final = timedelta(hours=1)
"""How far a timeline reaches into the future by default."""

router = APIRouter(prefix="/v1/jobs", tags=["inquiries"])


def timeline_reader(here: Components, calculate: Calculate) -> TimelineReader:
    retention = timedelta(days=here.settings.execution.history_retention_days)
    return TimelineReader(here.log, here.stored, here.history, calculate, retention=retention)


Since = Annotated[
    datetime | None, Query(description="The beginning; without an offset, in UTC. The default is a day before `until`.")
]
Until = Annotated[
    datetime | None,
    Query(description="The end, exclusive; without an offset, in UTC. The default is an hour from now."),
]
BucketLimit = Annotated[int, Query(ge=2, le=MAX_BUCKETS, description="The most buckets of the answer.")]


async def window_of(here: Components, since: datetime | None, until: datetime | None, buckets: int) -> Window:
    end = until or await here.log.now() + AHEAD
    return Window.of(since or earlier(end, timedelta(days=1)), end, buckets)


def earlier(time: datetime, span: timedelta) -> datetime:
    """Return the time a span earlier, or the first of the calendar."""
    try:
        return time - span
    except OverflowError:
        return datetime.min.replace(tzinfo=time.tzinfo)


@router.get("/{name}/timeline", operation_id="getTimeline", responses=documented(404))
async def get_timeline(
    here: Here,
    caller: HistoryReader,
    calculate: Calculate,
    name: JobName,
    since: Since = None,
    until: Until = None,
    buckets: BucketLimit = 200,
) -> Timeline:
    """Show every instant of a job, past and future, with its decision.

    Changes to the definition and times without a leader are along it. Up to 500 instants are marks; more are counted in buckets.
    """
    window = await window_of(here, since, until, buckets)
    reader = timeline_reader(here, calculate)
    return await reader.timeline(name, window, partial(here.visibility.seen_definitions, caller))


class TriggerTest(BaseModel):
    """The effect that an event would have on each trigger of a job."""

    triggers: list[TriggerAnswer]


@router.post("/{name}/triggers/test", operation_id="testTriggers", responses=documented(404))
async def test_triggers(
    here: Here, caller: Reader, calculate: Calculate, name: JobName, body: GivenEvent
) -> TriggerTest:
    """Try an event on the triggers of a job.

    The answer says which triggers would start an execution, with what input, and why others would not. Nothing is started or recorded.
    """
    job = visible(caller, await here.registry.job(name))
    now = await here.log.now()
    most = here.settings.triggers.max_hops
    return TriggerTest(triggers=[*await calculate(lambda _: try_event(job.definition, body, now, max_hops=most))])


class IgnoredEvents(BaseModel):
    """Events that started nothing, oldest first."""

    events: list[IgnoredEvent]


@router.get("/{name}/triggers/ignored", operation_id="ignoredEvents", responses=documented(404))
async def ignored_events(
    here: Here,
    caller: Reader,
    name: JobName,
    limit: Annotated[int, Query(ge=1, le=MAX_SHOWN)] = 100,
    sequence: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Only events with this position in their stream.")
    ] = None,
) -> IgnoredEvents:
    """List the newest events that started no execution of a job, with the reason.

    Each trigger keeps its last 200, as long as `output.max_age` says. Events whose condition is false are recorded if the trigger has `record: all`.
    """
    job = visible(caller, await here.registry.job(name))
    records = await read_ignored(here.log, job.definition.name, limit=limit, sequence=sequence)
    seen = [recorded for recorded in records if await here.visibility.may_see_event(caller, recorded)]
    return IgnoredEvents(events=[*map(shown, seen)])


DURATION_BUCKETS: Final = 100


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
    buckets: BucketLimit = DURATION_BUCKETS,
) -> JobDurations:
    """Show percentiles of a job's durations over time."""
    window = await window_of(here, since, until, buckets)
    past = await timeline_reader(here, calculate).past(name, partial(here.visibility.seen_definitions, caller))
    return await read_durations(here.history, past, window, calculate)


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
    window = await window_of(here, since or earlier(end, timedelta(days=90)), end, DURATION_BUCKETS)
    past = await timeline_reader(here, calculate).past(name, partial(here.visibility.seen_definitions, caller))
    zone = timezone or past.timezone
    days = await read_calendar(here.history, past, window, zone, calculate)
    return JobCalendar(timezone=zone, days=days)
