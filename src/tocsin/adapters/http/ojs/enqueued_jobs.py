"""Enqueue jobs, with the outcome of each: created, or a duplicate."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ....domain import execution
from ....domain.access import Permission, Principal
from ....domain.events import Enqueued, Skipped, newest_of
from ....domain.execution import Status
from ....services.operations import execution_requests
from ....services.operations.errors import NotFound
from ....services.operations.event_waiter import Facts
from ....services.operations.lookup import was_archived
from ..api.dependencies import Components
from ..api.problems import Problem
from ..auth.security import forbidden
from . import job_view

_REPLACING: Final = frozenset({"replace", "replace_except_schedule"})
_SUMMARY: Final = ("id", "type", "queue", "state")
"""Fields of an existing job that a caller without access to the history sees."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request to enqueue a job."""

    job: dict[str, Any]
    """The new job, or the existing one."""
    is_duplicate: bool = False
    """No job was created: `job` has the unique key."""


async def enqueue_all(
    here: Components, caller: Principal, inputs: Sequence[Enqueued], made: Collection[str]
) -> list[Outcome]:
    """Enqueue jobs: all of them, or none if an id is taken.

    The ids in `made` are certainly new.

    Raises:
        Problem: an id is taken, the caller may not replace jobs, or a job is refused as a duplicate.
    """
    for job_input in inputs:
        _require_permission(caller, job_input)

    async def exists(execution_id: str) -> bool:
        return execution_id not in made and await was_archived(execution_id, here.history, here.stored)

    try:
        enqueued = await execution_requests.enqueue(here.log, *inputs, arrivals=here.arrivals, was_there=exists)
    except execution_requests.Duplicate as error:
        raise Problem(409, "duplicate", str(error)) from None
    outcomes = (_outcome(here, caller, wish, facts) for wish, facts in zip(inputs, enqueued, strict=True))
    return list(await asyncio.gather(*outcomes))


def _require_permission(caller: Principal, job_input: Enqueued) -> None:
    """Check that a caller who replaces jobs may cancel them."""
    rule = job_input.unique
    if rule is not None and rule.on_conflict in _REPLACING and not caller.may(Permission.CANCEL):
        raise forbidden(caller, Permission.CANCEL)


async def _outcome(here: Components, caller: Principal, job_input: Enqueued, facts: Facts) -> Outcome:
    skipped = newest_of(facts, Skipped)
    if skipped is not None:
        return await _duplicate(here, caller, job_input, skipped.message.active_execution_id or "")
    if execution.fold(facts).status is not Status.UNKNOWN:
        return Outcome(job_view.job(facts))
    if job_input.unique is not None:
        reason = (
            f"it is not decided yet whether job {job_input.execution_id} is a duplicate: read it, or enqueue it again"
        )
        raise Problem(503, "unavailable", f"{reason} with the same id", headers={"Retry-After": "1"})
    return Outcome(_pending(here, job_input))


async def _duplicate(here: Components, caller: Principal, job_input: Enqueued, existing_id: str) -> Outcome:
    """Return the existing job under `ignore`.

    Raises:
        Problem: the job is refused.
    """
    existing: dict[str, Any] = {"id": existing_id}
    try:
        match = await job_view.find(here.log, existing_id, here.stored)
    except NotFound:
        pass  # another job with the key came first, and was replaced before it began
    else:
        existing = job_view.job(match.facts, id=existing_id)
    if not caller.may(Permission.HISTORY):
        existing = {name: existing[name] for name in _SUMMARY if name in existing}
    if job_input.unique is not None and job_input.unique.on_conflict == "ignore":
        return Outcome(existing, is_duplicate=True)
    facts = {
        "existing_job_id": existing_id,
        **({"existing_job_state": existing["state"]} if "state" in existing else {}),
    }
    raise Problem(409, "duplicate", f"job {existing_id} has the unique key of this job", facts=facts)


def _pending(here: Components, job_input: Enqueued) -> dict[str, Any]:
    # The input is stored, and no stage has processed it yet.
    definition = job_input.definition
    return {
        "id": job_input.execution_id,
        "type": definition.function,
        "state": "available" if job_input.start_at is None else "scheduled",
        "queue": definition.queue,
        "args": list(definition.args),
        "attempt": 0,
        "priority": definition.priority,
        "created_at": job_view.instant(here.clock.now()),
        "enqueued_at": job_view.instant(here.clock.now()),
    }
