"""`/v1/jobs/{name}/triggers/test`: what an event would do to the triggers of a job."""

from fastapi import APIRouter
from pydantic import BaseModel

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
    return TriggerTest(triggers=[*await calculate(lambda _: try_event(job.definition, body, now))])
