"""`/v1/what-if` replays the recorded past, or the forecast, with other definitions or other workers."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Response
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter, WithJsonSchema

from ....domain import formats
from ....domain.events import Message, Recorded
from ....domain.what_if import WhatIfReport
from ....services.what_if import MAX_JOBS, MAX_SLOTS, Question, WhatIf
from ..auth.security import HistoryReader
from .dependencies import Calculate, Here
from .jobs import json_answer, with_defaults

MAX_QUEUES: Final = 1_000
_REPORT: Final = TypeAdapter(WhatIfReport)

router = APIRouter(prefix="/v1", tags=["inquiries"])


class WhatIfRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Definitions to try, the slots of workers, and the window."""

    jobs: Annotated[
        list[dict[str, Any]],
        WithJsonSchema({"type": "array", "items": {"$ref": "#/components/schemas/WrittenJob"}}),
        Field(max_length=MAX_JOBS),
    ] = []
    """Definitions to try. Each is in force for the whole window, and none is registered."""
    since: AwareDatetime | None = None
    """The beginning of the window. The default is a week before its end, or for a forecast now."""
    until: AwareDatetime | None = None
    """The end of the window, at most 31 days after its beginning. The default is now; a later time is a forecast."""
    capacity: Annotated[dict[str, Annotated[int, Field(ge=0, le=MAX_SLOTS)]], Field(max_length=MAX_QUEUES)] = {}
    """The slots of workers by queue. All jobs of these queues that the caller sees take part."""


@router.post("/what-if", operation_id="askWhatIf", response_model=WhatIfReport)
async def ask_what_if(here: Here, caller: HistoryReader, calculate: Calculate, body: WhatIfRequest) -> Response:
    """Replay the recorded past, or the forecast, with other definitions or other workers.

    Nothing is registered or changed. The answer is calculated from the recorded triggers, durations, pauses and absences of
    the ticker. It regards no job that the caller may not see: under the name of such a job, the past is empty.
    """
    policy = (await here.registry.policies.newest()).policy
    definitions = await calculate(
        lambda _: tuple(
            with_defaults(definition, here, policy)
            for definition in formats.read({"jobs": body.jobs}, connection=here.settings.execution.default_connection)
        )
    )
    jobs = [job for job in await here.registry.jobs() if caller.may_see(job)] if body.capacity else []

    async def may_see(recorded: Recorded[Message]) -> bool:
        return await here.visibility.may_see_event(caller, recorded)

    question = Question(definitions, body.since, body.until, body.capacity)
    async with here.what_ifs.turn(caller.party):
        queues, requires_grant = here.settings.queues, here.settings.agents.require_grant
        what_if = WhatIf(here.log, here.stored, calculate, queues=queues, requires_grant=requires_grant)
        report = await what_if.ask(question, jobs, may_see=may_see)
        return json_answer(await calculate(lambda _: _REPORT.dump_json(report)))
