"""`/v1/jobs`: register, list, show, update, delete, trigger, pause and resume jobs (hip-62, API Endpoints)."""

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, JsonValue, WithJsonSchema

from ....domain.access import Permission
from ....domain.definition import JobDefinition, Name
from ....domain.events import Defined
from ....domain.formats import read_job
from ....domain.schedule import parse, warnings_at
from ....services.jobs import Job
from ....subjects import Stream
from ..auth.security import Author, Reader, Triggerer, actor, permitted, visible
from ..middleware.idempotency import IdempotentRoute, asking
from .dependencies import Components, Here, Precondition, Reason, ReasonText, both, etag
from .events import StoredFact
from .problems import Problem, documented, invalid, not_found

AHEAD: Final = 5

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=IdempotentRoute)

definitions = APIRouter(prefix="/v1/definitions", tags=["jobs"])

JobName: TypeAlias = Annotated[
    Name, Path(description="The job's name.", pattern=r"^[a-z0-9][a-z0-9\-\.]*$", max_length=255)
]
Written: TypeAlias = Annotated[
    dict[str, Any],
    Body(description="A job as hip-62 or the Open Job Spec spells it."),
    WithJsonSchema({"$ref": "#/components/schemas/WrittenJob"}),
]


class JobSummary(BaseModel):
    """A job in a list."""

    name: str
    state: Literal["active", "paused", "disabled", "on demand"]
    schedule: str | None
    timezone: str
    next_fire_time: datetime | None
    last_fire_time: datetime | None
    function: str | None
    steps: list[str]
    tags: list[str]
    owner: str | None


class JobDetails(JobSummary):
    """A job with everything that is known of it, and what its schedule was understood as."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    paused: bool
    sequence: int
    """Of the last fact on its definition; the `ETag`."""
    defined_at: datetime
    created_at: datetime
    created_by: str | None
    expressions: list[str]
    """What the schedule was read as: cron expressions, `@every …` or `@at …`."""
    warnings: list[str]
    """What its author may not expect."""
    next_fire_times: list[datetime]
    definition: JobDefinition

    @classmethod
    def of(cls, job: Job, now: datetime) -> "JobDetails":
        """A job as it is."""
        definition = job.definition
        schedule = (
            parse(definition.schedule, definition.timezone, dst=definition.dst)
            if definition.schedule is not None
            else None
        )
        return cls(
            **job.summary(now),
            paused=job.ledger.is_paused,
            sequence=job.sequence,
            defined_at=job.defined_at,
            created_at=job.created_at,
            created_by=job.created_by,
            expressions=list(schedule.expressions) if schedule else [],
            warnings=list(warnings_at(schedule, now)) if schedule else [],
            next_fire_times=list(islice(job.fire_times(now), AHEAD)),
            definition=definition,
        )


class JobList(BaseModel):
    """Jobs by name; `next` is the cursor of those that follow."""

    jobs: list[JobDetails | JobSummary]
    next: str | None = None


class TriggerRequest(BaseModel):
    """A run that is asked for. Everything may be left out."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    input: dict[str, JsonValue] | None = None
    """Its keys go over the job's own input."""
    args: list[JsonValue] | None = None
    """In place of the job's own args."""
    reason: ReasonText | None = None
    trigger: Literal["api", "manual"] = "api"
    """What the execution says that it was triggered by."""


class ChangeRequest(BaseModel):
    """Why, if that is said."""

    model_config = ConfigDict(extra="forbid")

    reason: ReasonText | None = None


class Triggered(BaseModel):
    """The execution that was asked for."""

    job: str
    execution_id: str


class Switched(BaseModel):
    """What a job is after a change, and whether it was before."""

    job: str
    action: Literal["paused", "resumed"]
    changed: bool


@router.post(
    "",
    status_code=201,
    operation_id="registerJob",
    responses={200: {"model": JobDetails, "description": "It is registered just so already."}, **documented(409)},
)
async def register_job(
    here: Here, caller: Author, written: Written, request: Request, response: Response, reason: Reason = None
) -> JobDetails:
    """Register a new job. One of that name which differs is not overwritten: that is for `PUT`."""
    definition = definition_of(written, here)

    def is_new(job: Job | None) -> None:
        if job is not None and job.definition != definition:
            raise Problem(
                409,
                "exists",
                f"a job called {job.name!r} exists: update it with PUT {request.url.path}/{job.name}",
                headers={"ETag": etag(job)},
            )

    check = both(permitted(caller, Permission.REGISTER), is_new)
    verb = await here.registry.define(definition, by=actor(caller), reason=reason, check=check)
    response.status_code = 201 if verb == "create" else 200
    response.headers["Location"] = f"{request.url.path}/{definition.name}"
    return await _details(here, definition.name, response)


@router.get("", operation_id="listJobs")
async def list_jobs(
    here: Here,
    caller: Reader,
    tag: Annotated[str | None, Query(description="Only those with this tag.")] = None,
    owner: Annotated[str | None, Query(description="Only those of this owner.")] = None,
    after: Annotated[
        str | None, Query(description="Only those whose names come after this one: `next` of a page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    details: Annotated[bool, Query(description="Tell everything of each.")] = False,  # noqa: FBT002 - a query parameter
) -> JobList:
    """List the jobs by name, each with the next time at which it fires."""
    now = here.clock.now()
    found = [
        job
        for job in await here.registry.jobs()
        if caller.may_see(job)
        and (tag is None or tag in job.definition.tags)
        and (owner is None or owner == job.definition.owner)
        and (after is None or job.name > after)
    ]
    return JobList(
        jobs=[JobDetails.of(job, now) if details else JobSummary(**job.summary(now)) for job in found[:limit]],
        next=found[limit - 1].name if len(found) > limit else None,
    )


@router.get("/{name}", operation_id="getJob", responses=documented(404))
async def get_job(here: Here, caller: Reader, name: JobName, response: Response) -> JobDetails:
    """Show one job: its definition, and when it fires."""
    job = visible(caller, await here.registry.job(name, fresh=True))
    response.headers["ETag"] = etag(job)
    return JobDetails.of(job, here.clock.now())


@router.put(
    "/{name}",
    operation_id="updateJob",
    responses={
        201: {"model": JobDetails, "description": "There was no such job; it is registered."},
        **documented(404, 412),
    },
)
async def update_job(
    here: Here,
    caller: Author,
    name: JobName,
    written: Written,
    response: Response,
    precondition: Precondition,
    reason: Reason = None,
) -> JobDetails:
    """Make this the job's definition. Nothing of the past fires; what runs, runs on."""
    if (given := written.setdefault("name", name)) != name:
        raise invalid("name", given, f"must be {name!r}, as the path says, or be left out")
    check = both(permitted(caller, Permission.REGISTER), precondition)
    verb = await here.registry.define(definition_of(written, here), by=actor(caller), reason=reason, check=check)
    response.status_code = 201 if verb == "create" else 200
    return await _details(here, name, response)


@router.delete("/{name}", status_code=204, operation_id="deleteJob", responses=documented(404, 412))
async def delete_job(
    here: Here, caller: Author, name: JobName, precondition: Precondition, reason: Reason = None
) -> None:
    """Delete a job; what already runs, runs on, and its history remains."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    await here.registry.delete(name, by=actor(caller), reason=reason, check=check)


@router.post("/{name}/trigger", status_code=202, operation_id="triggerJob", responses=documented(404))
async def trigger_job(
    here: Here,
    caller: Triggerer,
    request: Request,
    name: JobName,
    asked: TriggerRequest | None = None,
    reason: Reason = None,
) -> Triggered:
    """Run a job now, whatever its schedule says; no scheduled instant is used up."""
    asked = asked or TriggerRequest()
    execution_id = await here.registry.trigger(
        name,
        asked.input,
        asked.args,
        by=actor(caller),
        kind=asked.trigger,
        reason=asked.reason or reason,
        asking=asking(request),
        check=permitted(caller, Permission.TRIGGER),
    )
    return Triggered(job=name, execution_id=execution_id)


@router.post("/{name}/pause", operation_id="pauseJob", responses=documented(404, 412))
async def pause_job(
    here: Here,
    caller: Author,
    name: JobName,
    precondition: Precondition,
    asked: ChangeRequest | None = None,
    reason: Reason = None,
) -> Switched:
    """Let a job's instants pass without firing, until it is resumed."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    changed = await here.registry.pause(name, by=actor(caller), reason=_reason(asked, reason), check=check)
    return Switched(job=name, action="paused", changed=changed)


@router.post("/{name}/resume", operation_id="resumeJob", responses=documented(404, 412))
async def resume_job(
    here: Here,
    caller: Author,
    name: JobName,
    precondition: Precondition,
    asked: ChangeRequest | None = None,
    reason: Reason = None,
) -> Switched:
    """Let a paused job fire again; what passed meanwhile stays passed."""
    check = both(permitted(caller, Permission.REGISTER), precondition)
    changed = await here.registry.resume(name, by=actor(caller), reason=_reason(asked, reason), check=check)
    return Switched(job=name, action="resumed", changed=changed)


@definitions.get("/{sequence}", operation_id="getDefinition", responses=documented(404))
async def get_definition(here: Here, caller: Reader, sequence: Annotated[int, Path(ge=1, lt=2**63)]) -> StoredFact:
    """A definition that a job has or had, by its sequence: what an execution ran by, or what to go back to."""
    recorded = await here.log.get(Stream.LEDGER, sequence)
    fact = recorded.message if recorded else None
    if recorded is None or not isinstance(fact, Defined) or not await here.sight.reaches(caller, fact.job):
        raise not_found("definition", str(sequence))
    return StoredFact.of(recorded)


def definition_of(written: dict[str, Any], here: Components) -> JobDefinition:
    """The definition that a request holds, with what the settings say where it is silent.

    Raises:
        DefinitionError: with everything that is wrong with it.
    """
    return with_defaults(read_job(written), here)


def with_defaults(definition: JobDefinition, here: Components) -> JobDefinition:
    """A definition, with what the settings say where it is silent."""
    if "timeout" in definition.model_fields_set:
        return definition
    return definition.model_copy(update={"timeout": here.settings.execution.default_timeout})


async def _details(here: Components, name: str, response: Response) -> JobDetails:
    job = await here.registry.job(name, fresh=True)
    response.headers["ETag"] = etag(job)
    return JobDetails.of(job, here.clock.now())


def _reason(asked: ChangeRequest | None, header: str | None) -> str | None:
    return (asked.reason if asked else None) or header
