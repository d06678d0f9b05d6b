"""The registration of an application's jobs."""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final, TypeAlias

from .. import telemetry
from ..domain.definition import JobDefinition
from ..domain.definition_changes import changed_fields
from ..domain.errors import TocsinError
from ..domain.identity import typed
from ..domain.ledger import JobNotFound
from ..domain.text import counted
from ..ports import LogUnavailable, NotAllowed, SequenceConflict, Unreachable
from ..services.apply import with_defaults
from ..services.jobs import Change, Plan
from ..services.operations.errors import NotFound
from ..services.operator import Operator
from ..settings import Settings
from .errors import AppError

OpenOperator: TypeAlias = Callable[[], AbstractAsyncContextManager[Operator]]

RETRY_INTERVAL_S: Final = 5.0
"""Seconds between two tries to register jobs while NATS does not answer."""
CONFLICT_PAUSE_S: Final = 1.0
"""The longest pause, in seconds, before jobs are planned again that another program registered meanwhile."""
LONGEST_CONFLICT_PAUSE_S: Final = 60.0
"""To this the longest pause grows, twofold with each further conflict. Each pause is at random at least half of it."""
MAX_CONFLICTS: Final = 20
"""Conflicts after which no other try follows; seven to fifteen minutes with the pauses."""
MAX_REVISIONS: Final = 100
"""The newest revisions of a job among which an earlier definition is searched."""
_DEFAULTED: Final = frozenset({"timeout", "timezone"})
"""Fields with defaults of the installation, which may have changed since a definition was stored."""
MAX_LISTED: Final = 20
"""Jobs that an error lists."""

_log = telemetry.get_logger("tocsin.app")


class ForeignJobError(AppError):
    """Jobs of an application have the names of jobs with another owner.

    `jobs` has the owner of each.
    """

    code = "job-of-another-owner"

    def __init__(self, owner: str, jobs: Mapping[str, str]) -> None:
        """Refuse to change jobs that do not belong to `owner`."""
        listed = ", ".join(f"`{job}` of `{other}`" for job, other in list(jobs.items())[:MAX_LISTED])
        super().__init__(
            f"{counted(len(jobs), 'job')} of `{owner}` would replace jobs of another owner: {listed}. Rename them with `name=`, or "
            "take them over with `tocsin apply --take-over`."
        )
        self.jobs = jobs


async def plan_registration(
    operator: Operator,
    definitions: Collection[JobDefinition],
    owner: str,
    settings: Settings,
    *,
    prune: bool = False,
    take_over: bool = False,
) -> Plan:
    """Plan how to register the jobs of an application."""
    complete = await with_defaults(operator, definitions, settings)
    plan = await operator.plan(complete, prune=(owner,) if prune else ())
    if not take_over and (foreign := foreign_jobs(plan, owner)):
        raise ForeignJobError(owner, foreign)
    return replace(plan, is_guarded=True)


def foreign_jobs(plan: Plan, owner: str) -> dict[str, str]:
    """Return the owners of the jobs that a plan would take over, by job."""
    return {
        change.job: str(difference.before or "no owner")
        for change in plan.of("update")
        for difference in change.differences
        if difference.field == "owner" and (difference.before is None or typed(str(difference.before)) != owner)
    }


async def keep_registered(
    open_operator: OpenOperator, definitions: Collection[JobDefinition], owner: str, settings: Settings
) -> None:
    """Register an application's jobs beside its running worker, once NATS answers.

    Nothing is deleted. A definition that the job had before stays replaced: an old version of the program that restarts
    during a deploy must not undo the new version. What cannot be registered is logged, because the worker runs on.
    """
    conflicts = 0
    while True:
        try:
            async with open_operator() as operator:
                plan = await _without_returns(
                    operator,
                    await plan_registration(operator, definitions, owner, settings, take_over=True),
                    definitions,
                )
                await _carry_out(operator, _without_foreign(plan, owner))
        except SequenceConflict as error:  # another version or copy of the program registered a job meanwhile
            conflicts += 1
            if conflicts > MAX_CONFLICTS:
                _log_refusal(owner, error)
                return
            _log.info("jobs are planned again", action="app-jobs-conflict", owner=owner, error=str(error))
            longest = min(CONFLICT_PAUSE_S * 2 ** (conflicts - 1), LONGEST_CONFLICT_PAUSE_S)
            await asyncio.sleep(random.uniform(0.5, 1) * longest)  # noqa: S311 - spreads the copies, also at the longest
        except TocsinError as error:
            if isinstance(error, NotAllowed) or not isinstance(error, LogUnavailable | Unreachable):
                _log_refusal(owner, error)
                return
            _log.warning("jobs wait for NATS", action="app-jobs-wait", owner=owner, error=str(error))
            await asyncio.sleep(RETRY_INTERVAL_S)
        else:
            counts = {verb: len(plan.of(verb)) for verb in ("create", "update", "unchanged")}
            _log.info("jobs registered", action="app-jobs-registered", owner=owner, **counts)
            return


def _log_refusal(owner: str, error: TocsinError) -> None:
    _log.error("jobs not registered", action="app-jobs-refused", owner=owner, code=error.code, error=str(error))


async def _carry_out(operator: Operator, plan: Plan) -> None:
    """Carry out a plan, one change after the other."""
    conflict: SequenceConflict | None = None
    for change in plan.changes:
        try:
            await operator.carry_out(replace(plan, changes=(change,)))
        except SequenceConflict as error:
            conflict = error
    if conflict is not None:
        raise conflict


def _without_foreign(plan: Plan, owner: str) -> Plan:
    foreign = foreign_jobs(plan, owner)
    for job, other in foreign.items():
        _log.error(
            "job belongs to another owner; rename it, or run `tocsin apply --take-over`",
            action="app-job-foreign",
            job=job,
            owner=other,
        )
    return _without(plan, foreign)


async def _without_returns(operator: Operator, plan: Plan, definitions: Collection[JobDefinition]) -> Plan:
    """Leave out changes that would return a job to a definition that it had before."""
    written = {definition.name: definition.model_fields_set for definition in definitions}
    changes = plan.of("create", "update")
    returns = [
        change.job
        for change in changes
        if await _is_return(operator, change, _DEFAULTED - written.get(change.job, set()))
    ]
    for job in returns:
        _log.warning(
            "job keeps its newer definition, which replaced that of this program; to return to it, run `tocsin apply`",
            action="app-job-not-returned",
            job=job,
        )
    return _without(plan, returns)


async def _is_return(operator: Operator, change: Change, ignored: Collection[str]) -> bool:
    """Return whether a job had this definition before, without regard to some fields."""
    try:
        revisions = await operator.revisions(change.job)
    except (JobNotFound, NotFound):
        return False
    for revision in [each for each in revisions if each.kind == "defined"][:MAX_REVISIONS]:
        try:
            earlier = await operator.definition(change.job, revision.sequence)
        except (JobNotFound, NotFound):
            continue
        if all(difference.field in ignored for difference in changed_fields(earlier, change.definition)):
            return True
    return False


def _without(plan: Plan, jobs: Collection[str]) -> Plan:
    return replace(plan, changes=tuple(change for change in plan.changes if change.job not in jobs))
