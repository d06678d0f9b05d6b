"""`GET /v1/jobs`: list the jobs, page by page."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ....domain.access import Principal
from ....domain.definition import Text
from ....services.calculations import Effort
from ....services.jobs import Job, JobFilter, JobStatus
from ..auth.security import Reader
from .dependencies import Calculate, Here
from .job_runs import runs_of_jobs
from .jobs import JobDetails, JobSummary, json_answer

MAX_SEARCH: Final = 200
EXAMINED_AT_ONCE: Final = 64
"""Jobs that are compared with the filters between two readings of the processor time."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class JobFilters(BaseModel):
    """Filters of a list of jobs."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    search: Annotated[Text, StringConstraints(min_length=1, max_length=MAX_SEARCH)] | None = None
    """Return only jobs with this text in their name, description or tags, in any case."""
    state: JobStatus | None = None
    """Return jobs in this state only."""
    queue: Text | None = None
    """Return jobs with a step in this queue only."""
    tag: Text | None = None
    """Return jobs with this tag only."""
    owner: Text | None = None
    """Return jobs of this owner only, such as `user:ada` or `token:deploy`."""
    after: Text | None = None
    """Return jobs whose names sort after this name: `next` of the previous page."""
    limit: int = Field(default=1_000, ge=1, le=10_000)
    details: bool = False
    """Return all fields of each job."""
    runs: bool = False
    """Return the counters of each job's runs."""

    @property
    def condition(self) -> JobFilter:
        """The conditions on each job."""
        return JobFilter(search=self.search, state=self.state, queue=self.queue, tag=self.tag, owner=self.owner)


class JobList(BaseModel):
    """Jobs by name; `next` is the cursor of the following page."""

    jobs: list[JobDetails | JobSummary]
    next: str | None = None


@router.get("", operation_id="listJobs", response_model=JobList)
async def list_jobs(
    here: Here, caller: Reader, calculate: Calculate, filters: Annotated[JobFilters, Query()]
) -> Response:
    """List the jobs by name, each with its next occurrence.

    A page ends before `limit` if it takes a second to calculate; with filters it may then be empty, and have a `next`.
    """
    now = here.clock.now()
    jobs = await here.registry.jobs()
    condition = filters.condition

    def page(effort: Effort) -> JobList:
        candidates = condition.candidates(jobs, here.search_keys, here.instants, effort)
        return _page(
            caller, candidates, filters, partial(condition.includes, status_of=here.instants.status_of), now, effort
        )

    if not filters.runs:
        return json_answer(await calculate(lambda effort: _written(page(effort))))
    listed = await calculate(page)
    registered = here.registry.last_listed
    runs = await runs_of_jobs(here, caller, [row.name for row in listed.jobs], registered)
    for row in listed.jobs:
        row.runs = runs.get(row.name)
    return json_answer(await calculate(lambda _: _written(listed)))


def _page(
    caller: Principal,
    jobs: Sequence[Job],
    filters: JobFilters,
    includes: Callable[[Job], bool],
    now: datetime,
    effort: Effort,
) -> JobList:
    """Return the first jobs that match and the caller may see."""
    rows = list[JobDetails | JobSummary]()
    last: str | None = None
    following: str | None = None
    begin = 0 if filters.after is None else bisect_right(jobs, filters.after, key=attrgetter("name"))
    is_spent, is_listed = False, False
    for number, job in enumerate(islice(jobs, begin, None)):
        if is_listed or number % EXAMINED_AT_ONCE == 0:
            is_spent, is_listed = effort.is_spent(), False
        if not caller.may_see(job):
            continue
        if is_spent and last is not None:
            following = last
            break
        last = job.name
        if not includes(job):
            continue
        if len(rows) == filters.limit:
            following = rows[-1].name
            break
        is_listed = True
        rows.append(JobDetails.of(job, now) if filters.details else JobSummary(**job.summary(now)))
    return JobList(jobs=rows, next=following)


def _written(page: JobList) -> bytes:
    return page.model_dump_json().encode()
