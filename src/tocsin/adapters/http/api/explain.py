"""`/v1/explain`: what a schedule means, and when it fires, before anything is registered."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ....domain.schedule import DstPolicy, explain
from ..auth.security import Reader
from .components import Here

router = APIRouter(prefix="/v1/explain", tags=["schedule"])


class ExplainRequest(BaseModel):
    """A schedule, as a definition would write it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    schedule: Annotated[str, Field(max_length=1_000)]
    """Cron, `@every …`, `at …` or an English phrase."""
    timezone: Annotated[str, Field(max_length=255)] = "UTC"
    dst: DstPolicy | None = None
    count: Annotated[int, Field(ge=1, le=1_000)] = 5
    """How many instants to tell."""


class LocalInstant(BaseModel):
    """An instant in UTC and on the schedule's wall clock."""

    utc: datetime
    local: datetime


class ScheduleExplanation(BaseModel):
    """What a schedule was understood as."""

    text: str
    timezone: str
    meaning: str
    expressions: list[str]
    next: list[LocalInstant]
    clock_changes: list[str]
    warnings: list[str]
    timezone_database: str


@router.post("", operation_id="explainSchedule")
async def explain_schedule(here: Here, caller: Reader, asked: ExplainRequest) -> ScheduleExplanation:
    """Say what a schedule is understood as, and when it fires next."""
    _ = caller
    told: dict[str, Any] = asdict(
        explain(asked.schedule, asked.timezone, here.clock.now(), dst=asked.dst, n=asked.count)
    )
    return ScheduleExplanation.model_validate(told)
