"""Questions about the past: why a job ran at an instant or did not, and how well executions reach their executors."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from ....domain.events import Actor
from ....domain.execution_stats import ExecutionStats, RecoveryStats
from ....domain.ledger import JobNotFound
from ....services.execution_stats import statistics
from ....services.explain import Answer, ExplainReader, Gap, Outcome, Verdict
from ..auth.security import Reader
from .dependencies import Here
from .events import StoredFact
from .jobs import JobName
from .problems import documented

router = APIRouter(prefix="/v1", tags=["inquiries"])


class Why(BaseModel):
    """The decision on one instant, with the facts that led to it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    job: str
    at: datetime
    timezone: str
    verdict: Verdict
    schedule: str | None
    definition: int
    """The sequence of the definition that was in force."""
    local_exists: bool
    """false: the local time that was asked for does not exist that day."""
    skipped_local: datetime | None
    repeated: bool
    before: datetime | None
    after: datetime | None
    since: datetime | None
    by: Actor | None
    reason: str | None
    count: int
    late_by: float
    """Seconds from the instant to the decision."""
    caught_up: bool
    gap: Gap | None
    """A time in which no ticker led."""
    outcome: Outcome | None
    execution_id: str | None
    facts: list[StoredFact]

    @classmethod
    def of(cls, answer: Answer) -> "Why":
        """An answer."""
        told = {name: getattr(answer, name) for name in cls.model_fields if name != "facts"}
        return cls(**told, facts=[StoredFact.of(recorded) for recorded in answer.facts])


class WhyAnswers(BaseModel):
    """One answer, or two where the clocks of the job's zone showed the time twice."""

    answers: list[Why]


class StatisticsAnswer(BaseModel):
    """What was counted from the log, from `since` to `until`."""

    since: datetime
    until: datetime
    executions: ExecutionStats
    recoveries: RecoveryStats


@router.get("/jobs/{name}/why", operation_id="explainInstant", responses=documented(404))
async def explain_instant(
    here: Here,
    caller: Reader,
    name: JobName,
    time: Annotated[
        datetime | None,
        Query(
            description="An instant; without an offset on the clock of the job's zone. By default the latest that its schedule named."
        ),
    ] = None,
) -> WhyAnswers:
    """Say why a job ran at a time, or why it did not."""
    if not await here.sight.reaches(caller, name):
        raise JobNotFound(name)
    answers = await ExplainReader(here.log, here.stored).why(name, time)
    return WhyAnswers(answers=[Why.of(answer) for answer in answers])


@router.get("/stats", operation_id="getStatistics")
async def get_statistics(
    here: Here,
    caller: Reader,
    since: Annotated[datetime | None, Query(description="Count from then on; by default for a day.")] = None,
) -> StatisticsAnswer:
    """Count how many executions reached an executor, how many were lost, and how many of those were recovered."""
    _ = caller
    begin = since or await here.log.now() - timedelta(days=1)
    found = await statistics(here.log, since=begin if begin.tzinfo else begin.replace(tzinfo=here.clock.now().tzinfo))
    return StatisticsAnswer(
        since=found.since, until=found.until, executions=found.executions, recoveries=found.recoveries
    )
