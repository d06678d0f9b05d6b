"""`/v1/jobs:apply`: make the registered jobs those of some definitions, by way of a plan that can be looked at first.

The plan tells, beside the fields that change, which instants come and go in the days ahead, what the clocks of the zone do
to them, and that nothing fires at once. Every change is a fact, so a roll-back is to apply what was there before.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema

from ....domain import formats
from ....domain.access import Permission, Principal
from ....domain.definition import JobDefinition, Text
from ....domain.schedule import parse, warnings_at
from ....services.jobs import Change, Check, Job
from ..auth.security import Author, actor, permitted
from ..middleware.idempotency import IdempotentRoute
from .dependencies import Here, Reason, ReasonText
from .jobs import with_defaults

NAMED: Final = 20
"""Instants of each change that the plan names; all are counted."""

router = APIRouter(tags=["jobs"], route_class=IdempotentRoute)


class ApplyRequest(BaseModel):
    """Definitions, and what is to be done about others."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    jobs: Annotated[
        list[dict[str, Any]],
        WithJsonSchema({"type": "array", "items": {"$ref": "#/components/schemas/WrittenJob"}}),
        Field(max_length=10_000),
    ]
    owner: Annotated[Text, Field(min_length=1, max_length=255)] | None = None
    """Whose the definitions are that do not name an owner; by default the caller's."""
    prune: bool = False
    """Delete the jobs that the same owners applied and that are not there any more."""
    dry_run: bool = False
    """Only tell the plan."""
    days: Annotated[float, Field(gt=0, le=31)] = 7
    """How far ahead the plan looks."""
    reason: ReasonText | None = None


class FieldDifference(BaseModel):
    """One field that an update changes."""

    field: str
    before: JsonValue
    after: JsonValue


class Instants(BaseModel):
    """Some instants: how many, and the first of them."""

    count: int
    first: list[datetime]


class ClockEffect(BaseModel):
    """A change of the zone's clocks that touches the schedule: local times that are skipped, shifted, or come twice."""

    at: datetime
    kind: Literal["gap", "fold"]
    effect: Literal["skipped", "shifted", "once", "twice"]
    local_times: list[datetime]


class PlannedChange(BaseModel):
    """What happens to one job."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    job: str
    action: Literal["create", "update", "unchanged", "delete"]
    differences: list[FieldDifference]
    expressions: list[str]
    """What its schedule is read as."""
    warnings: list[str]
    until: datetime
    """How far ahead instants are told."""
    instants_added: Instants
    instants_removed: Instants
    clock_changes: list[ClockEffect]
    fires_at_once: list[datetime]
    """Instants that would become due by the change itself; none, unless something is wrong."""


class Applied(BaseModel):
    """What was done, or with `dry_run` would be."""

    changes: list[PlannedChange]
    summary: dict[str, int]
    dry_run: bool


@router.post("/v1/jobs:apply", operation_id="applyJobs")
async def apply_jobs(here: Here, caller: Author, asked: ApplyRequest, reason: Reason = None) -> Applied:
    """Make the registered jobs those of the definitions. Applying again changes nothing; all is checked before anything is done."""
    owner = asked.owner or caller.identity
    definitions = [_owned(with_defaults(definition, here), owner) for definition in formats.read({"jobs": asked.jobs})]
    owners = {definition.owner for definition in definitions if definition.owner} | {owner}
    plan = await here.registry.plan(definitions, prune=owners if asked.prune else ())
    check = _check(caller)
    for change in plan.changes:
        check(Job.of(change.before))
    if not asked.dry_run:
        await here.registry.carry_out(plan, by=actor(caller), reason=asked.reason or reason, check=check)
    now, ahead = here.clock.now(), timedelta(days=asked.days)
    verbs: tuple[Literal["create", "update", "unchanged", "delete"], ...] = ("create", "update", "unchanged", "delete")
    return Applied(
        changes=[_shown(change, now, ahead) for change in plan.changes],
        summary={verb: len(plan.of(verb)) for verb in verbs},
        dry_run=asked.dry_run,
    )


def _owned(definition: JobDefinition, owner: str) -> JobDefinition:
    return definition if definition.owner else definition.model_copy(update={"owner": owner})


def _check(caller: Principal) -> Check:
    return permitted(caller, Permission.REGISTER)


def _shown(change: Change, now: datetime, ahead: timedelta) -> PlannedChange:
    definition = change.definition
    is_new = change.verb in {"create", "update"} and definition.schedule is not None
    schedule = parse(definition.schedule or "", definition.timezone, dst=definition.dst) if is_new else None
    effects = change.effects(now, ahead)
    return PlannedChange(
        job=change.job,
        action=change.verb,
        differences=[
            FieldDifference(field=one.field, before=one.before, after=one.after) for one in change.differences
        ],
        expressions=list(schedule.expressions) if schedule else [],
        warnings=list(warnings_at(schedule, now)) if schedule else [],
        until=effects.until,
        instants_added=Instants(count=len(effects.added), first=list(effects.added[:NAMED])),
        instants_removed=Instants(count=len(effects.removed), first=list(effects.removed[:NAMED])),
        clock_changes=[
            ClockEffect(at=one.at, kind=one.kind, effect=one.effect, local_times=list(one.times))
            for one in effects.clock_changes
        ],
        fires_at_once=list(effects.fires_at_once),
    )
