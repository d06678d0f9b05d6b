"""`/v1/jobs`: register, show, update, delete, trigger, pause and resume jobs (hip-62, API Endpoints)."""

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Body, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema

from .... import subjects
from ....domain.access import Permission
from ....domain.definition import JobDefinition, Name
from ....domain.events import Actor, Defined
from ....domain.formats import read_job
from ....domain.policy import Policy
from ....domain.schedule import warnings_at
from ....services.apply import completed
from ....services.calculations import Calculator
from ....services.jobs import Check, Job, JobStatus, RunCounters
from ..auth.security import Author, Reader, Triggerer, actor, defining, permitted, visible
from ..middleware.idempotency import IdempotentRoute, request_name
from .dependencies import (
    Calculate,
    ChangeRequest,
    Components,
    Here,
    Precondition,
    Reason,
    ReasonText,
    Traceparent,
    both,
    etag,
    given_reason,
)
from .events import StoredFact
from .job_runs import runs_of
from .problems import Problem, documented, invalid, not_found

MAX_NEXT_FIRE_TIMES: Final = 5

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)

JobName: TypeAlias = Annotated[
    Name, Path(description="The job's name.", pattern=r"^[a-z0-9][a-z0-9\-\.]*$", max_length=255)
]
SwitchAction: TypeAlias = Literal["paused", "resumed"]
Written: TypeAlias = Annotated[
    dict[str, Any],
    Body(description="A job definition as hip-62 or the Open Job Spec writes it."),
    WithJsonSchema({"$ref": "#/components/schemas/WrittenJob"}),
]


class JobSummary(BaseModel):
    """A job in a list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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
        """Convert a job."""
        schedule = job.schedule
        return cls(
            **job.summary(now),
            paused=job.ledger.is_paused,
            sequence=job.sequence,
            defined_at=job.defined_at,
            job_uuid=job.job_uuid,
            created_at=job.created_at,
            created_by=job.created_by,
            expressions=list(schedule.expressions) if schedule else [],
            warnings=list(warnings_at(schedule, now)) if schedule else [],
            next_fire_times=list(islice(job.fire_times(now), MAX_NEXT_FIRE_TIMES)),
            decided_until=job.ledger.watermark,
            anchor=job.anchor,
            definition=job.definition,
        )


def json_answer(body: bytes) -> Response:
    """Return an answer of JSON that a calculation has written."""
    return Response(body, media_type="application/json")


class TriggerRequest(BaseModel):
    """Options of a manual run. All fields are optional."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

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
    """Requests of the job with one key make one execution, as long as the log holds it.

    The header `Idempotency-Key` repeats an answer for 24 hours instead.
    """


class Triggered(BaseModel):
    """The requested execution."""

    job: str
    execution_id: str


class Switched(BaseModel):
    """The state of a job after the request; `changed`: this request changed it."""

    job: str
    action: SwitchAction
    changed: bool


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
    await here.visibility.require_dependencies(caller, definition)
    check = both(defining(caller, definition), is_new)
    verb = await here.registry.define(
        definition, by=actor(caller), reason=reason, check=check, may_see=here.visibility.of(caller)
    )
    response.status_code = 201 if verb == "create" else 200
    response.headers["Location"] = f"{request.url.path}/{definition.name}"
    return await job_details(here, calculate, definition.name, response)


@router.get("/{name}", operation_id="getJob", responses=documented(404))
async def get_job(here: Here, caller: Reader, calculate: Calculate, name: JobName, response: Response) -> JobDetails:
    """Show a job: its definition, its next occurrences and the counters of its runs."""
    job = visible(caller, await here.registry.job(name, fresh=True))
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
    await here.visibility.require_dependencies(caller, definition)
    check = both(defining(caller, definition), precondition)
    verb = await here.registry.define(
        definition, by=actor(caller), reason=reason, check=check, may_see=here.visibility.of(caller)
    )
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
async def pause_job(
    here: Here,
    caller: Author,
    name: JobName,
    precondition: Precondition,
    body: ChangeRequest | None = None,
    reason: Reason = None,
) -> Switched:
    """Pause a job: its occurrences pass without firing until it is resumed."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    return await _switch(here, name, "paused", by=actor(caller), reason=given_reason(body, reason), check=check)


@router.post("/{name}/resume", operation_id="resumeJob", responses=documented(404, 412))
async def resume_job(
    here: Here,
    caller: Author,
    name: JobName,
    precondition: Precondition,
    body: ChangeRequest | None = None,
    reason: Reason = None,
) -> Switched:
    """Resume a paused job. Occurrences that passed during the pause do not fire."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    return await _switch(here, name, "resumed", by=actor(caller), reason=given_reason(body, reason), check=check)


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
    """Return the definition in a request, with the defaults of the policy and the settings.

    Raises:
        DefinitionError: the definition is invalid; the error lists every invalid field.
    """
    definition = read_job(written, connection=here.settings.execution.default_connection)
    return with_defaults(definition, here, (await here.registry.policies.newest()).policy)


def with_defaults(definition: JobDefinition, here: Components, policy: Policy) -> JobDefinition:
    """Return a definition with the defaults of the policy and the settings."""
    return completed(definition, policy, here.settings)


async def _switch(
    here: Components, name: str, action: SwitchAction, *, by: Actor, reason: str | None, check: Check
) -> Switched:
    switch = here.registry.pause if action == "paused" else here.registry.resume
    return Switched(job=name, action=action, changed=await switch(name, by=by, reason=reason, check=check))


async def job_details(here: Components, calculate: Calculator, name: str, response: Response) -> JobDetails:
    """Return a job after a change, with its version in the header."""
    job = await here.registry.job(name, fresh=True)
    response.headers["ETag"] = etag(job)
    now = here.clock.now()
    return await calculate(lambda _: JobDetails.of(job, now))
