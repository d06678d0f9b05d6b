"""`/v1/jobs`: list, register, show, update, delete, trigger, pause and resume jobs (hip-62, API Endpoints)."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import BaseModel, Field, JsonValue, StringConstraints, WithJsonSchema

from .... import subjects
from ....domain.access import Permission, Principal
from ....domain.definition import JobDefinition, Name, Text
from ....domain.events import Defined
from ....domain.formats import read, read_job
from ....domain.schedule import warnings_at
from ....services.apply import completed
from ....services.calculations import Calculator, Effort
from ....services.jobs import Check, Job, JobFilter, JobStatus, RunCounters, with_result
from ..auth.security import Author, Reader, Triggerer, actor, defining, permitted, visible
from ..auth.visibility import VisibleRuns
from ..middleware.idempotency import IdempotentRoute, request_name
from .dependencies import (
    Calculate,
    Cause,
    Components,
    Here,
    Precondition,
    Reason,
    ReasonText,
    Traceparent,
    both,
    etag,
)
from .events import StoredFact
from .problems import Problem, documented, invalid, not_found, problem_of

MAX_NEXT_FIRE_TIMES: Final = 5
MAX_SEARCH: Final = 200
EXAMINED_AT_ONCE: Final = 64
"""Jobs that are compared with the filters between two readings of the processor time."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)

JobName: TypeAlias = Annotated[
    Name, Path(description="The job's name.", pattern=r"^[a-z0-9][a-z0-9\-\.]*$", max_length=255)
]
Written: TypeAlias = Annotated[
    dict[str, Any],
    Body(description="A job definition as hip-62 or the Open Job Spec writes it."),
    WithJsonSchema({"$ref": "#/components/schemas/WrittenJob"}),
]


_OF_JOB: Final = ("sequence", "defined_at", "job_uuid", "created_at", "created_by", "anchor", "definition")


class JobSummary(BaseModel, use_attribute_docstrings=True):
    """A job in a list."""

    name: str
    state: JobStatus
    schedule: str | None
    timezone: str
    next_fire_time: datetime | None
    last_fire_time: datetime | None
    function: str | None
    steps: list[str]
    tags: list[str]
    owner: str | None
    runs: RunCounters | None = None
    """The counters of its runs, for `GET /v1/jobs/{name}` and lists with `runs`; null: unknown, or not for the caller."""


class JobDetails(JobSummary):
    """A job with all its fields, and the meaning of its schedule."""

    paused: bool
    sequence: int
    """The sequence of its last definition event, which is also the `ETag`."""
    defined_at: datetime
    job_uuid: str
    """The id of its registration, also in the history: a job that is deleted and registered again has another."""
    created_at: datetime
    created_by: str | None
    expressions: list[str]
    """The expressions that the schedule stands for: cron, `@every …` or `@at …`."""
    warnings: list[str]
    """Properties of the schedule that its author may not expect."""
    next_fire_times: list[datetime]
    decided_until: datetime | None
    """The time up to which each occurrence is decided."""
    anchor: datetime
    """The time from which `@every` counts: the last occurrence, or the definition that set the interval."""
    definition: JobDefinition
    permitted: list[Permission] | None = None
    """What the caller may do with the job. Only `GET /v1/jobs/{name}` has it."""

    @classmethod
    def of(cls, job: Job, now: datetime) -> "JobDetails":
        schedule = job.schedule
        return cls(
            **job.summary(now),
            **{name: getattr(job, name) for name in _OF_JOB},
            paused=job.ledger.is_paused,
            expressions=list(schedule.expressions) if schedule else [],
            warnings=list(warnings_at(schedule, now)) if schedule else [],
            next_fire_times=list(islice(job.fire_times(now), MAX_NEXT_FIRE_TIMES)),
            decided_until=job.ledger.watermark,
        )


def json_answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")


class TriggerRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Options of a manual run. All fields are optional."""

    input: dict[str, JsonValue] | None = None
    """Its keys override those of the job's input."""
    args: list[JsonValue] | None = None
    """Replaces the job's args."""
    priority: int | None = Field(default=None, ge=-100, le=100, strict=True)
    """Replaces the job's priority."""
    reason: ReasonText | None = None
    trigger: Literal["api", "manual"] = "api"
    """The trigger that the execution records."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=255)
    """Requests of the job with one key make one execution, until 24 hours after its end.

    The header `Idempotency-Key` repeats an answer for 24 hours instead.
    """


class Triggered(BaseModel):
    """The requested execution."""

    job: str
    execution_id: str


class Switched(BaseModel):
    """The state of a job after the request; `changed`: this request changed it."""

    job: str
    action: Literal["paused", "resumed"]
    changed: bool


class JobFilters(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Filters of a list of jobs."""

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
    condition = JobFilter(**filters.model_dump(include={"search", "state", "queue", "tag", "owner"}))

    def page(effort: Effort) -> JobList:
        candidates = condition.candidates(jobs, here.search_keys, here.instants, effort)
        return _page(
            caller, candidates, filters, partial(condition.includes, status_of=here.instants.status_of), now, effort
        )

    if not filters.runs:
        return json_answer(await calculate(lambda effort: page(effort).model_dump_json().encode()))
    listed = await calculate(page)
    registered = here.registry.last_listed
    runs = await runs_of_jobs(here, caller, [row.name for row in listed.jobs], registered)
    for row in listed.jobs:
        row.runs = runs.get(row.name)
    return json_answer(await calculate(lambda _: listed.model_dump_json().encode()))


def _page(
    caller: Principal,
    jobs: Sequence[Job],
    filters: JobFilters,
    includes: Callable[[Job], bool],
    now: datetime,
    effort: Effort,
) -> JobList:
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


async def runs_of(here: Components, caller: Principal, job: Job) -> RunCounters | None:
    """Return the counters of a job; None: hidden, or the history cannot be read."""
    try:
        counters = (await runs_of_jobs(here, caller, [job.name], lambda _: job)).get(job.name)
        return None if counters is None else await with_result(here.history, counters)
    except Exception as error:
        if problem_of(error).kind != "unavailable":
            raise
        return None


async def runs_of_jobs(
    here: Components, caller: Principal, jobs: Sequence[str], registered: Callable[[str], Job | None]
) -> Mapping[str, RunCounters]:
    """Return the counters of jobs; none without the right to read executions.

    `registered`: returns a registered job. A last run under a definition that the caller may not see is left out.
    """
    if not caller.may(Permission.HISTORY):
        return {}
    runs = await here.history.summaries.runs(jobs)
    if runs is None:
        return {}
    sees = VisibleRuns(here.visibility, caller, registered)
    counters: dict[str, RunCounters] = {}
    for job, of_job in runs.items():
        last = of_job.last
        is_visible = last is None or await sees(job, last.definition, last.status, last.ended_at)
        counters[job] = RunCounters.of(of_job if is_visible else replace(of_job, last=None))
    return counters


@router.post(
    "",
    status_code=201,
    operation_id="registerJob",
    responses={
        200: {"model": JobDetails, "description": "A job with this definition is already registered."},
        **documented(409),
    },
)
async def register_job(
    here: Here,
    caller: Author,
    calculate: Calculate,
    written: Written,
    request: Request,
    response: Response,
    reason: Reason = None,
) -> JobDetails:
    """Register a new job. `PUT` replaces an existing job of the same name."""
    definition = await definition_of(written, here)

    def is_new(job: Job | None) -> None:
        if job is not None and job.definition != definition:
            raise Problem(
                409,
                "exists",
                f"a job called {job.name!r} exists. Update it with PUT {request.url.path}/{job.name}",
                headers={"ETag": etag(job)},
            )

    await here.visibility.require_name(caller, definition.name)
    verb = await define(here, caller, definition, is_new, reason)
    response.status_code = 201 if verb == "create" else 200
    response.headers["Location"] = f"{request.url.path}/{definition.name}"
    return await job_details(here, calculate, definition.name, response)


@router.get("/{name}", operation_id="getJob", responses=documented(404))
async def get_job(here: Here, caller: Reader, calculate: Calculate, name: JobName, response: Response) -> JobDetails:
    """Show a job: its definition, its next occurrences and the counters of its runs."""
    job = visible(caller, await here.registry.job(name))
    response.headers["ETag"] = etag(job)
    now = here.clock.now()
    details = await calculate(lambda _: JobDetails.of(job, now))
    runs = await runs_of(here, caller, job)
    return details.model_copy(update={"permitted": list(caller.permitted_with(job)), "runs": runs})


@router.put(
    "/{name}",
    operation_id="updateJob",
    responses={
        201: {"model": JobDetails, "description": "The job did not exist and is registered."},
        **documented(404, 412),
    },
)
async def update_job(
    here: Here,
    caller: Author,
    calculate: Calculate,
    name: JobName,
    written: Written,
    response: Response,
    precondition: Precondition,
    reason: Reason = None,
) -> JobDetails:
    """Replace the job's definition. Past occurrences do not fire, and running executions continue."""
    if (body_name := written.setdefault("name", name)) != name:
        raise invalid("name", body_name, f"must be {name!r}, the name in the path, or be left out")
    await here.visibility.require_name(caller, name)
    definition = await definition_of(written, here)
    verb = await define(here, caller, definition, precondition, reason)
    response.status_code = 201 if verb == "create" else 200
    return await job_details(here, calculate, name, response)


@router.delete("/{name}", status_code=204, operation_id="deleteJob", responses=documented(404, 412))
async def delete_job(
    here: Here, caller: Author, name: JobName, precondition: Precondition, reason: Reason = None
) -> None:
    """Delete a job. Running executions continue, and its history remains."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    await here.registry.delete(name, by=actor(caller), reason=reason, check=check)


@router.post("/{name}/trigger", status_code=202, operation_id="triggerJob", responses=documented(404))
async def trigger_job(
    here: Here,
    caller: Triggerer,
    request: Request,
    name: JobName,
    body: TriggerRequest | None = None,
    reason: Reason = None,
    traceparent: Traceparent = None,
) -> Triggered:
    """Run a job now, independently of its schedule."""
    body = body or TriggerRequest()
    execution_id = await here.registry.trigger(
        name,
        body.input,
        body.args,
        by=actor(caller),
        kind=body.trigger,
        priority=body.priority,
        reason=body.reason or reason,
        traceparent=traceparent,
        idempotency_key=body.idempotency_key,
        asking=request_name(request),
        check=permitted(caller, Permission.TRIGGER),
    )
    return Triggered(job=name, execution_id=execution_id)


@router.post("/{name}/pause", operation_id="pauseJob", responses=documented(404, 412))
async def pause_job(here: Here, caller: Author, name: JobName, cause: Cause, precondition: Precondition) -> Switched:
    """Pause a job: its occurrences pass without firing until it is resumed."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    changed = await here.registry.pause(name, by=actor(caller), reason=cause, check=check)
    return Switched(job=name, action="paused", changed=changed)


@router.post("/{name}/resume", operation_id="resumeJob", responses=documented(404, 412))
async def resume_job(here: Here, caller: Author, name: JobName, cause: Cause, precondition: Precondition) -> Switched:
    """Resume a paused job. Occurrences that passed during the pause do not fire."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    changed = await here.registry.resume(name, by=actor(caller), reason=cause, check=check)
    return Switched(job=name, action="resumed", changed=changed)


@router.get("/{name}/definitions/{sequence}", operation_id="getDefinition", responses=documented(404))
async def get_definition(
    here: Here, caller: Reader, name: JobName, sequence: Annotated[int, Path(ge=1, lt=2**63)]
) -> StoredFact:
    """Show a current or past definition of a job by its sequence."""
    recorded = await here.log.get(subjects.ledger(name), sequence)
    fact = recorded.message if recorded else None
    is_of_job = isinstance(fact, Defined) and fact.job == name
    if recorded is None or not is_of_job or not await here.visibility.may_see_event(caller, recorded):
        raise not_found("definition", str(sequence))
    return StoredFact.of(recorded)


async def definition_of(written: dict[str, Any], here: Components) -> JobDefinition:
    """Return the definition in a request, with the defaults of the policy and the settings."""
    definition = read_job(written, connection=here.settings.execution.default_connection)
    return completed(definition, (await here.registry.policies.newest()).policy, here.settings)


async def definitions_of(written: list[dict[str, Any]], here: Components, calculate: Calculator) -> list[JobDefinition]:
    """Return the definitions in a request, as `definition_of` returns one."""
    policy = (await here.registry.policies.newest()).policy
    connection = here.settings.execution.default_connection
    return await calculate(
        lambda _: [completed(each, policy, here.settings) for each in read({"jobs": written}, connection=connection)]
    )


async def define(
    here: Components, caller: Principal, definition: JobDefinition, check: Check, reason: str | None
) -> str:
    """Register a definition with the rights of a caller; return `create`, `update` or `unchanged`."""
    await here.visibility.require_dependencies(caller, definition)
    return await here.registry.define(
        definition,
        by=actor(caller),
        reason=reason,
        check=both(defining(caller, definition), check),
        may_see=here.visibility.of(caller),
    )


async def job_details(here: Components, calculate: Calculator, name: str, response: Response) -> JobDetails:
    """Return a job after a change, with its version in the header."""
    job = await here.registry.job(name)
    response.headers["ETag"] = etag(job)
    now = here.clock.now()
    return await calculate(lambda _: JobDetails.of(job, now))
