"""`/v1/jobs/{name}/triggers/…`: what an event would do, and which events started nothing."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....services.ignored_events import MAX_SHOWN, IgnoredEvent, read_ignored, shown
from ....services.trigger_test import GivenEvent, TriggerAnswer, try_event
from ..auth.security import Reader, visible
from .dependencies import Calculate, Here
from .jobs import JobName
from .problems import documented

router = APIRouter(prefix="/v1/jobs", tags=["inquiries"])


class TriggerTest(BaseModel):
    """The effect that an event would have on each trigger of a job."""

    triggers: list[TriggerAnswer]


@router.post("/{name}/triggers/test", operation_id="testTriggers", responses=documented(404))
async def test_triggers(
    here: Here, caller: Reader, calculate: Calculate, name: JobName, body: GivenEvent
) -> TriggerTest:
    """Try an event on the triggers of a job.

    The answer says which triggers would start an execution, with what input, and why others would not. Nothing is started or recorded.
    """
    job = visible(caller, await here.registry.job(name))
    now = await here.log.now()
    most = here.settings.triggers.max_hops
    return TriggerTest(triggers=[*await calculate(lambda _: try_event(job.definition, body, now, max_hops=most))])


class IgnoredEvents(BaseModel):
    """Events that started nothing, oldest first."""

    events: list[IgnoredEvent]


@router.get("/{name}/triggers/ignored", operation_id="ignoredEvents", responses=documented(404))
async def ignored_events(
    here: Here,
    caller: Reader,
    name: JobName,
    limit: Annotated[int, Query(ge=1, le=MAX_SHOWN)] = 100,
    sequence: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Only events with this position in their stream.")
    ] = None,
) -> IgnoredEvents:
    """List the newest events that started no execution of a job, with the reason.

    Each trigger keeps its last 200, as long as `output.max_age` says. Events whose condition is false are recorded if the trigger has `record: all`.
    """
    job = visible(caller, await here.registry.job(name))
    records = await read_ignored(here.log, job.definition.name, limit=limit, sequence=sequence)
    seen = [recorded for recorded in records if await here.visibility.may_see_event(caller, recorded)]
    return IgnoredEvents(events=[*map(shown, seen)])
