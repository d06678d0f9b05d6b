"""`/ojs/v1/cron`: the cron jobs of the Open Job Spec (ojs-cron §8).

The tests cover CRON-06, 07 and 26 to 28. A cron job is a job with a schedule and one function whose name is an OJS type. A
job that a CronJob cannot express (it has steps, or no schedule) is not listed here, and a registration under its name is
refused. Fields that the server manages are ignored if a client sends them. Answers have the names of the specification
(`cron_job`, `cron`) and those of its conformance suite (`cron`, `expression`).
"""

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Body, Query, Response
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, WithJsonSchema

from .... import subjects
from ....domain.access import Permission
from ....domain.definition import DefinitionError, Name
from ....domain.events import CronTriggered, Message, Recorded
from ....domain.formats import ojs
from ....domain.ledger import JobNotFound
from ....domain.schedule import parse, warnings_at
from ....domain.text import utc_text
from ....ports import SequenceConflict
from ....services.apply import completed
from ....services.calculations import Calculator, Effort
from ....services.jobs import Job
from ....services.jobs.registry import each
from ..api.dependencies import Calculate, Components, Here, Precondition, Reason, both, etag
from ..api.problems import FieldError, Problem
from ..auth.security import Author, Reader, actor, defining, permitted, visible
from ..middleware.idempotency import IdempotentRoute
from .job_view import Json
from .protocol import ojs_router
from .queues import DEFAULT_LIMIT, Cursor, Limit, Offset, page_of

_NAME: Final[TypeAdapter[str]] = TypeAdapter(Name)

router = ojs_router("/ojs/v1/cron", 404, 409, 412, 413, route_class=IdempotentRoute)


class Toggle(BaseModel, extra="forbid"):
    """A request to enable or disable a cron job."""

    enabled: bool = Field(strict=True)


@router.post("", status_code=201, operation_id="registerCron", responses={200: {"description": "Updated."}})
async def register_cron(
    here: Here,
    caller: Author,
    calculate: Calculate,
    written: Annotated[
        dict[str, Any],
        Body(description="A CronJob (ojs-cron §2)."),
        WithJsonSchema({"$ref": "#/components/schemas/WrittenCron"}),
    ],
    response: Response,
    reason: Reason = None,
) -> Json:
    """Register a cron job, or update the cron job of that name.

    `warnings` are consequences of the schedule that its author may not expect: days that some months lack, clock changes, and so on.
    A job of that name that a CronJob cannot express is not replaced: 409 `not_expressible` names what would be lost.
    """
    policy = (await here.registry.policies.newest()).policy
    definition = completed(ojs.reading(written).definition(), policy, here.settings)
    ojs.write(definition)  # rejects a definition that could not be shown again
    await here.visibility.require_name(caller, definition.name)
    await here.visibility.require_dependencies(caller, definition)
    check = both(defining(caller, definition), _loses_nothing)
    try:
        verb = await here.registry.define(
            definition, by=actor(caller), reason=reason, check=check, may_see=here.visibility.of(caller)
        )
    except DefinitionError as error:
        raise ojs.respelled(error) from None
    response.status_code = 201 if verb == "create" else 200
    answer = await _answer(here, calculate, definition.name, response)
    text, zone, now = definition.schedule or "", definition.timezone, here.clock.now()
    warnings = await calculate(
        lambda _: [*warnings_at(parse(text, zone, dst=definition.dst, days=definition.day_rules), now)]
    )
    return {**answer, "warnings": warnings}


@router.get("", operation_id="listCrons")
async def list_crons(
    here: Here,
    caller: Reader,
    calculate: Calculate,
    enabled: Annotated[bool | None, Query(description="Return enabled or disabled cron jobs only.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Json:
    """List the cron jobs by name. `count` is the number in this page."""
    now = here.clock.now()
    visible_jobs = [
        job
        for job in await here.registry.jobs()
        if caller.may_see(job) and (enabled is None or enabled == job.definition.enabled)
    ]
    jobs = await calculate(lambda effort: [job for job in visible_jobs if _is_cron(job, effort)])
    selected, place = page_of(jobs, lambda job: job.name, limit=limit, offset=offset, cursor=cursor)
    events = await each(selected, lambda job: _last_triggered(here, job))
    crons = await calculate(lambda _: [_cron_of(job, event, now) for job, event in zip(selected, events, strict=True)])
    return {"cron_jobs": crons, "crons": crons, "count": len(crons), "pagination": place}


@router.get("/{name}", operation_id="getCron")
async def get_cron(here: Here, caller: Reader, calculate: Calculate, name: str, response: Response) -> Json:
    """Show a cron job."""
    visible(caller, await _existing(here, name))
    return await _answer(here, calculate, name, response)


@router.delete("/{name}", operation_id="removeCron")
async def remove_cron(here: Here, caller: Author, name: str, precondition: Precondition, reason: Reason = None) -> Json:
    """Remove a cron job. Its running executions continue."""
    await _existing(here, name)
    check = both(permitted(caller, Permission.REGISTER), precondition)
    await here.registry.delete(name, by=actor(caller), reason=reason, check=check)
    return {"deleted": True, "name": name, "cron": {"name": name}}


@router.patch("/{name}", operation_id="toggleCron")
async def toggle_cron(
    here: Here,
    caller: Author,
    calculate: Calculate,
    name: str,
    body: Toggle,
    response: Response,
    precondition: Precondition,
    reason: Reason = None,
) -> Json:
    """Enable or disable a cron job, which stays registered."""
    job = visible(caller, await _existing(here, name))
    version = etag(job)
    definition = job.definition.model_copy(update={"enabled": body.enabled})
    is_permitted = defining(caller, definition)

    def check(current: Job | None) -> None:
        precondition(current)
        is_permitted(current)
        if current is None:
            raise JobNotFound(name)
        if etag(current) != version:
            raise SequenceConflict(f"job {name!r} was changed by another request. Retry")

    await here.registry.define(
        definition, by=actor(caller), reason=reason, check=check, may_see=here.visibility.of(caller)
    )
    return await _answer(here, calculate, name, response)


async def _existing(here: Components, name: str) -> Job:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        raise JobNotFound(name) from None
    job = await here.registry.job(name)
    if not _is_cron(job):
        raise JobNotFound(name)
    return job


def _loses_nothing(current: Job | None) -> None:
    if current is None:
        return
    try:
        ojs.write(current.definition)
    except DefinitionError as error:
        lost = tuple(FieldError(field=p.field, value=p.value, right=p.reason, job=p.job) for p in error.problems)
        names = ", ".join(f"`{problem.field}`" for problem in error.problems)
        detail = f"job {current.name!r} has what a CronJob cannot express ({names}), and this would replace it"
        raise Problem(409, "not-expressible", detail, lost, headers={"ETag": etag(current)}) from None


def _is_cron(job: Job, effort: Effort | None = None) -> bool:
    if effort is not None:
        effort.is_spent()  # ends when the client leaves
    try:
        ojs.write(job.definition)
    except DefinitionError:
        return False
    return True


async def _answer(here: Components, calculate: Calculator, name: str, response: Response) -> Json:
    job = await here.registry.job(name)
    response.headers["ETag"] = etag(job)
    event, now = await _last_triggered(here, job), here.clock.now()
    cron = await calculate(lambda _: _cron_of(job, event, now))
    return {"cron_job": cron, "cron": cron}


async def _last_triggered(here: Components, job: Job) -> Recorded[Message] | None:
    return await here.log.last(subjects.public_event("triggered", job.name))


def _cron_of(job: Job, triggered: Recorded[Message] | None, now: datetime) -> Json:
    """Return a cron job: the registered fields, and those that the server manages (ojs-cron §2).

    `expression` is `cron` under the name of the conformance suite. `next_run_at` is null if the job is disabled or paused, or if no
    occurrence follows.
    """
    event = triggered.message if triggered else None
    # The event outlives its job: runs before this registration belong to a deleted job.
    is_current = triggered is not None and triggered.time >= job.created_at
    data = event.data if isinstance(event, CronTriggered) and is_current else None
    written, following = ojs.write(job.definition), job.next_fire_time(now)
    return {
        **written,
        "expression": written["cron"],
        "last_run_at": utc_text(data.actual_time) if data else None,
        "next_run_at": None if following is None else utc_text(following),
        "run_count": data.run_count if data else 0,
        "created_at": utc_text(job.created_at),
    }
