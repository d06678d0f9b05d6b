"""`/v1/jobs/{name}/timeline`: every instant of a job with its decision, from hours to months."""

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....services.timeline import MAX_BUCKETS, Decision, TimelineBucket, TimelineReader, TimelineVersion, Window
from ..auth.security import HistoryReader
from .dependencies import Calculate, Components, Here
from .jobs import JobName
from .problems import documented

USUAL_BUCKETS: Final = 200
AHEAD: Final = timedelta(hours=1)
"""How far a timeline reaches into the future by default."""
BACK: Final = timedelta(days=1)

router = APIRouter(prefix="/v1/jobs", tags=["inquiries"])


class TimelineMark(BaseModel, use_attribute_docstrings=True, from_attributes=True):
    """An instant and the decision on it, or an execution that something else triggered."""

    at: datetime
    decision: Decision
    """The status of the execution of an instant that fired (`fired`: the history has none), `trigger` for an execution that
    the schedule did not request, and otherwise the verdict of `why`."""
    reason: str | None
    """The reason for a skip, a cancellation or a pause; `catch_up`: it fired late; of a `trigger`, what triggered it."""
    execution_id: str | None
    status: str | None
    """The status of the execution."""
    late_by: float | None
    """Seconds from the instant to the decision."""
    count: int
    """Executions on shards with this status, or instants of which only the number is known."""


class TimelineGap(BaseModel, from_attributes=True):
    """A time in which no ticker led."""

    start: datetime
    end: datetime


class Timeline(BaseModel, use_attribute_docstrings=True, from_attributes=True):
    """The time of a job: `marks` if its instants are few, otherwise `buckets`."""

    since: datetime
    until: datetime
    timezone: str
    """The zone of the newest definition."""
    marks: list[TimelineMark] | None
    """Every instant, by time. null: there are too many."""
    buckets: list[TimelineBucket] | None
    """Counts in spans of equal width, which cover the time without a gap. null: `marks` has every instant."""
    versions: list[TimelineVersion]
    """The changes to the definition in this time, and the last change before it."""
    gaps: list[TimelineGap]
    """The times without a leading ticker that made instants late."""
    truncated: bool
    """Whether some instants, changes or gaps are missing: they were too many, or the history has expired them."""


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
    return Window.of(since or earlier(end, BACK), end, buckets)


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
    buckets: BucketLimit = USUAL_BUCKETS,
) -> Timeline:
    """Show every instant of a job, past and future, with its decision.

    Changes to the definition and times without a leader are along it. Up to 500 instants are marks; more are counted in buckets.
    """
    window = await window_of(here, since, until, buckets)
    reader = timeline_reader(here, calculate)
    timeline = await reader.timeline(name, window, partial(here.visibility.seen_definitions, caller))
    return Timeline.model_validate(timeline)
