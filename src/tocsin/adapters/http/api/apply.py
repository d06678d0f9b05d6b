"""`/v1/jobs:apply`: make the registered jobs match a set of definitions.

A request with `dry_run` returns the plan, so that it can be reviewed first.

The plan shows the fields that change, the occurrences added and removed in the days ahead, the effect of clock changes on
them, and that nothing fires at once. Every change is an event, so applying the previous definitions is a rollback.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, WithJsonSchema

from ....domain.access import Permission, Principal
from ....domain.agent import AgentRecord
from ....domain.definition import JobDefinition, Text
from ....domain.definition_changes import MAX_INSTANTS, DefinitionDiff
from ....domain.schedule import parse, warnings_at
from ....ports import LogUnavailable
from ....services.calculations import Effort
from ....services.jobs import Change, Job, Plan
from ....services.unserved import unserved
from ..auth.security import Author, actor, defining, permitted, require_within
from ..auth.visibility import narrowed, require_reached_dependencies
from ..middleware.idempotency import IdempotentRoute, forget_key
from .dependencies import Calculate, Components, Here, Reason, ReasonText, shown_as
from .jobs import definitions_of, json_answer

MAX_LISTED: Final = 20
"""Occurrences of each change that the plan lists; it counts all of them."""
MAX_COMPARED: Final = 100_000
"""Occurrences that a plan compares for all changes together. A plan of many frequent jobs covers less time."""

MAX_UNSERVED: Final = 100

Action: TypeAlias = Literal["create", "update", "unchanged", "delete"]

router = APIRouter(tags=["jobs"], route_class=IdempotentRoute)


class ApplyRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Definitions to register, and whether to delete other jobs."""

    jobs: Annotated[
        list[dict[str, Any]],
        WithJsonSchema({"type": "array", "items": {"$ref": "#/components/schemas/WrittenJob"}}),
        Field(max_length=10_000),
    ]
    owner: Annotated[Text, Field(min_length=1, max_length=255)] | None = None
    """The owner of definitions that name none, such as `token:deploy`; the default is the caller."""
    prune: bool = False
    """Delete jobs of the same owners that the definitions do not contain."""
    dry_run: bool = False
    """Return the plan, and change nothing."""
    days: Annotated[float, Field(gt=0, le=31)] = 7
    """The number of days ahead that the plan covers."""
    reason: ReasonText | None = None


class Instants(BaseModel):
    """The number of occurrences, and the first of them."""

    count: int
    first: list[datetime]


class ClockEffect(BaseModel):
    """A clock change that skips, shifts or repeats local times of the schedule."""

    at: datetime
    kind: Literal["gap", "fold"]
    effect: Literal["skipped", "shifted", "once", "twice"]
    local_times: list[datetime]


class PlannedChange(BaseModel, use_attribute_docstrings=True):
    """The change of a job."""

    job: str
    action: Action
    differences: Sequence[DefinitionDiff]
    expressions: list[str]
    """The expressions that its schedule stands for."""
    warnings: list[str]
    until: datetime
    """The end of the period that the plan covers: earlier than `days` for a job with many occurrences in this time."""
    instants_added: Instants
    instants_removed: Instants
    clock_changes: list[ClockEffect]
    fires_at_once: list[datetime]
    """Occurrences that the change itself would make due; always empty unless there is a bug."""


class UnknownDependency(BaseModel):
    """A dependency on a job that is not registered."""

    job: str
    depends_on: str


class UnservedTasks(BaseModel, use_attribute_docstrings=True):
    """A queue or a function of jobs that no worker serves."""

    queue: str
    jobs: list[str]
    function: str | None
    """null: no worker reads the queue."""
    nearest: str | None
    """The most similar function of the queue's workers, or the most similar queue that a worker reads."""
    elsewhere: str | None
    """Another queue with workers for the function."""
    message: str


class Applied(BaseModel):
    """The changes made, or with `dry_run` the changes planned."""

    changes: list[PlannedChange]
    summary: dict[str, int]
    dry_run: bool
    unserved: list[UnservedTasks]
    """What the definitions need and no worker serves now; at most 100 entries."""
    unknown_dependencies: list[UnknownDependency]
    """Jobs on which the definitions depend and that are not registered; at most 100 entries."""


@router.post("/v1/jobs:apply", operation_id="applyJobs", response_model=Applied)
async def apply_jobs(
    here: Here, caller: Author, calculate: Calculate, request: Request, body: ApplyRequest, reason: Reason = None
) -> Response:
    """Make the registered jobs match the definitions.

    All definitions are checked before any change is made. Applying them again changes nothing.
    """
    owner = body.owner or caller.full_name
    definitions = [_owned(definition, owner) for definition in await definitions_of(body.jobs, here, calculate)]
    for definition in definitions:  # before the plan, whose errors say which namespaces are declared
        require_within(caller, definition)
        require_reached_dependencies(caller, definition)
    owners = {definition.owner for definition in definitions if definition.owner} | {owner}
    prune = owners if body.prune else ()
    plan = await here.registry.plan(
        definitions, prune=prune, may_see=here.visibility.of(caller), may_prune=lambda job: caller.reaches(job.name)
    )
    check = permitted(caller, Permission.REGISTER)
    for change in plan.changes:
        is_defined = change.verb in {"create", "update"}
        (defining(caller, change.definition) if is_defined else check)(Job.of(change.before))
        if change.verb == "create":
            await here.visibility.require_name(caller, change.job)
        if is_defined:
            await here.visibility.require_dependencies(caller, change.definition)
    if body.dry_run:
        forget_key(request)
    else:
        await here.registry.carry_out(plan, by=actor(caller), reason=body.reason or reason, check=check)
    workers = await known_workers(here, caller)
    now, ahead = here.clock.now(), timedelta(days=body.days)

    def write(effort: Effort) -> bytes:
        missing = unserved_tasks(definitions, workers, here)
        return _written(plan, now, ahead, effort, missing, dry_run=body.dry_run)

    return json_answer(await calculate(write))


def _written(
    plan: Plan, now: datetime, ahead: timedelta, effort: Effort, missing: list[UnservedTasks], *, dry_run: bool
) -> bytes:
    most = max(MAX_LISTED, min(MAX_INSTANTS, MAX_COMPARED // max(1, len(plan.changes))))
    shown = list[PlannedChange]()
    for change in plan.changes:
        is_late = effort.is_spent()  # the plan lists every change, so the rest of them covers less time
        shown.append(_shown(change, now, ahead, 1 if is_late else most))
    applied = Applied(
        changes=shown,
        summary={verb: len(plan.of(verb)) for verb in get_args(Action)},
        dry_run=dry_run,
        unserved=missing,
        unknown_dependencies=[UnknownDependency(job=job, depends_on=name) for job, name in plan.unknown[:MAX_UNSERVED]],
    )
    return applied.model_dump_json().encode()


def _owned(definition: JobDefinition, owner: str) -> JobDefinition:
    return definition if definition.owner else definition.model_copy(update={"owner": owner})


def _shown(change: Change, now: datetime, ahead: timedelta, most: int) -> PlannedChange:
    definition = change.definition
    is_new = change.verb in {"create", "update"} and definition.schedule is not None
    days = definition.day_rules
    schedule = parse(definition.schedule or "", definition.timezone, dst=definition.dst, days=days) if is_new else None
    effects = change.effects(now, ahead, most=most)
    return PlannedChange(
        job=change.job,
        action=change.verb,
        differences=change.differences,
        expressions=list(schedule.expressions) if schedule else [],
        warnings=list(warnings_at(schedule, now)) if schedule else [],
        until=effects.until,
        instants_added=Instants(count=len(effects.added), first=list(effects.added[:MAX_LISTED])),
        instants_removed=Instants(count=len(effects.removed), first=list(effects.removed[:MAX_LISTED])),
        clock_changes=[shown_as(ClockEffect, each, local_times=list(each.times)) for each in effects.clock_changes],
        fires_at_once=list(effects.fires_at_once),
    )


async def known_workers(here: Components, caller: Principal) -> Sequence[AgentRecord] | None:
    """Return the agents that a caller may see; None: the log does not answer."""
    with suppress(LogUnavailable):
        return narrowed(caller, await here.agents.agents())
    return None


def unserved_tasks(
    definitions: Sequence[JobDefinition], workers: Sequence[AgentRecord] | None, here: Components
) -> list[UnservedTasks]:
    """Return what jobs need and no worker serves; nothing if the workers are not known."""
    missing = [] if workers is None else unserved(definitions, workers, outside=here.settings.bridged_queues)
    return [
        UnservedTasks.model_validate(asdict(each) | {"jobs": each.jobs[:20], "message": str(each)})
        for each in missing[:MAX_UNSERVED]
    ]
