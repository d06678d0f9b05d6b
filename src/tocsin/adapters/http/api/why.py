"""`/v1/jobs/{name}/why` explains an occurrence, and `/v1/stats` counts executions."""

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter, WithJsonSchema

from ....domain.ledger import JobNotFound
from ....domain.what_if import WhatIfReport
from ....ports.queries import in_utc
from ....services.explain import Answer, ExplainReader
from ....services.overview import Statistics, statistics
from ....services.what_if import MAX_JOBS, MAX_SLOTS, Question, WhatIf
from ..auth.security import HistoryReader
from ..auth.visibility import VisibleRuns
from .dependencies import Calculate, Here
from .events import StoredFact
from .jobs import JobName, definitions_of, json_answer
from .problems import documented

router = APIRouter(prefix="/v1", tags=["inquiries"])


@dataclass(frozen=True, slots=True)
class Why(Answer):
    """The decision on an occurrence, with the events that led to it."""

    facts: tuple[StoredFact, ...] = ()  # type: ignore[assignment] # as the API shows them

    @classmethod
    def of(cls, answer: Answer) -> "Why":
        values = {field.name: getattr(answer, field.name) for field in fields(answer)}
        return cls(**values | {"facts": tuple(map(StoredFact.of, answer.facts))})


class WhyAnswers(BaseModel):
    """The answer, or two answers if the job's timezone had the time twice."""

    answers: list[Why]


@router.get("/jobs/{name}/why", operation_id="explainInstant", responses=documented(404))
async def explain_instant(
    here: Here,
    caller: HistoryReader,
    calculate: Calculate,
    name: JobName,
    time: Annotated[
        datetime | None,
        Query(
            description="An instant, in the job's timezone if it has no offset. The default is the latest occurrence, or the following "
            "occurrence if the job was paused, disabled or registered since."
        ),
    ] = None,
) -> WhyAnswers:
    """Explain why a job ran at a time, or why it did not."""
    reader = ExplainReader(
        here.log,
        here.stored,
        calculate,
        hold_ups=here.hold_ups(caller),
        sees=partial(here.visibility.seen_definitions, caller),
        sees_event=partial(here.visibility.may_see_event, caller),
        may_see=partial(here.visibility.may_see, caller),
    )
    answers = await reader.why(name, time)
    facts = [recorded for answer in answers for recorded in answer.facts]
    # The time may be of an earlier registration of the name, which other callers may see.
    seen = [await here.visibility.may_see_event(caller, recorded) for recorded in facts]
    if not all(seen or [await here.visibility.may_see(caller, name)]):
        raise JobNotFound(name)
    return WhyAnswers(answers=[Why.of(answer) for answer in answers])


@router.get("/stats", operation_id="getStatistics")
async def get_statistics(
    here: Here,
    caller: HistoryReader,
    since: Annotated[
        datetime | None, Query(description="Count from this instant on. The default is a day ago.")
    ] = None,
    job: Annotated[
        str | None, Query(min_length=1, max_length=255, description="Count only this job. The default is all jobs.")
    ] = None,
) -> Statistics:
    """Count the executions that workers received (with any outcome), lost executions, and recoveries.

    Only those that the caller may see. They come from the history, which lags a moment and has archived executions too.
    """
    if job is not None and not caller.reaches(job):  # a hidden job within is like one that never ran
        raise JobNotFound(job)
    begin = since or await here.log.now() - timedelta(days=1)
    begin = in_utc("since", begin if begin.tzinfo else begin.replace(tzinfo=here.clock.now().tzinfo))
    now = await here.log.now()
    await here.registry.jobs()
    sees = VisibleRuns(here.visibility, caller, here.registry.last_listed)
    summaries = here.history.summaries
    return await statistics(summaries, since=begin, now=now, job=job, sees=sees, namespaces=caller.reached)


MAX_QUEUES: Final = 1_000
_REPORT: Final = TypeAdapter(WhatIfReport)


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
    definitions = tuple(await definitions_of(body.jobs, here, calculate))
    jobs = [job for job in await here.registry.jobs() if caller.may_see(job)] if body.capacity else []
    question = Question(definitions, body.since, body.until, body.capacity)
    async with here.what_ifs.turn(caller.party):
        queues, requires_grant = here.settings.queues, here.settings.agents.require_grant
        what_if = WhatIf(here.log, here.stored, calculate, queues=queues, requires_grant=requires_grant)
        report = await what_if.ask(question, jobs, may_see=partial(here.visibility.may_see_event, caller))
        return json_answer(await calculate(lambda _: _REPORT.dump_json(report)))
