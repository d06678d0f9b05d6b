"""`GET /ojs/v1/events`: recent events of jobs and cron jobs (ojs-events, ojs-cron §9). `/v1/events` streams events."""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Query

from .... import subjects
from ....domain.events import (
    Admitted,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Message,
    PublicEvent,
    Recorded,
    RetryScheduled,
    Started,
    unfold,
)
from ....ports import pages
from ..api.dependencies import Components, Here
from ..auth.security import HistoryReader
from .job_view import about_of, instant
from .protocol import OjsResponse, documented
from .workflow_events import WorkflowEvents, is_of_workflow

MAX_SCANNED: Final = 2_000
"""Number of messages of the log that are searched for each kind of event, newest first."""
MAX_LIMIT: Final = 1_000

router = APIRouter(
    prefix="/ojs/v1/events",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 429, 500, 503),
)

_Event: TypeAlias = tuple[Recorded[Message], dict[str, Any]]
"""A stored event, and what the client receives of it."""

_KINDS: Final[dict[type[Message], str]] = {
    Admitted: "job.enqueued",
    Started: "job.started",
    Completed: "job.completed",
    RetryScheduled: "job.retrying",
    Exhausted: "job.failed",
    Failed: "job.discarded",
    Cancelled: "job.cancelled",
}


@router.get("", operation_id="listEvents")
async def list_events(
    here: Here,
    caller: HistoryReader,
    types: Annotated[
        str | None, Query(description="Return these types only, separated by commas.", max_length=1_000)
    ] = None,
    queues: Annotated[
        str | None,
        Query(
            description="Return events of these queues only, separated by commas; events of cron jobs have no queue.",
            max_length=4_000,
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
) -> dict[str, Any]:
    """List recent events, newest first."""
    facts, announced = await asyncio.gather(_newest(here, "execution.>"), _newest(here, subjects.PUBLIC_EVENTS))
    wanted_types, wanted_queues = _split(types), _split(queues)
    events = [
        event
        for recorded, event in sorted((*_events(facts), *_cron_events(announced)), key=_time_of)
        if (not wanted_types or event["type"] in wanted_types)
        and (not wanted_queues or event["data"].get("queue") in wanted_queues)
        and await here.visibility.may_see_event(caller, recorded)
    ]
    return {"events": events[::-1][:limit]}


async def _newest(here: Components, subject_filter: str) -> list[Recorded[Message]]:
    newest = await here.log.last(subject_filter)
    if newest is None:
        return []
    after = max(0, newest.sequence - MAX_SCANNED)
    recent: list[Recorded[Message]] = []
    async for page in pages(here.log, subject_filter, after=after, limit=MAX_SCANNED):
        recent += page
        if recent[-1].sequence >= newest.sequence:
            break
    return recent


def _time_of(event: _Event) -> str:
    return str(event[1]["time"])


def _cron_events(announced: Iterable[Recorded[Message]]) -> Iterable[_Event]:
    """Yield public events; a `cron.missed` stands for `count` skipped occurrences."""
    for recorded in announced:
        if isinstance(event := recorded.message, PublicEvent):
            yield (
                recorded,
                {
                    "specversion": "1.0",
                    "id": f"evt_cron_{recorded.sequence}",
                    "type": event.event,
                    "source": "/ojs/v1",
                    "time": instant(recorded.time),
                    "subject": event.data.cron_name,
                    "data": event.data.model_dump(mode="json"),
                },
            )


def _events(facts: Iterable[Recorded[Message]]) -> Iterable[_Event]:
    tasks: dict[str, Dispatched] = {}
    admitted: dict[str, Admitted] = {}
    started: dict[str, datetime] = {}
    workflows: dict[str, WorkflowEvents] = {}
    for fact in unfold(facts):
        entity, message = subjects.entity_of(fact.subject), fact.message
        if is_of_workflow(message):
            workflow = workflows.setdefault(entity, WorkflowEvents(entity.rpartition(".")[2]))
            yield from _workflow_events(fact, workflow)
            continue
        match message:
            case Admitted():
                admitted[entity] = message
            case Dispatched():
                tasks[entity] = message
            case Started():
                started[entity] = fact.time
            case _:
                pass
        kind = _KINDS.get(type(message))
        if kind is None or not isinstance(
            message, Admitted | Started | Completed | RetryScheduled | Exhausted | Failed | Cancelled
        ):
            continue
        plan = admitted[entity].plan if entity in admitted else None
        task = tasks.get(entity)
        step = plan.steps[0] if plan else None
        about = about_of(plan.meta if plan else task.meta if task else {})
        data: dict[str, Any] = {
            "job_id": about.get("id", message.execution_id),
            "job": message.job,
            "job_type": task.function if task else step.function if step else None,
            "queue": task.queue if task else step.queue if step else None,
        }
        if not isinstance(message, Admitted) and message.attempt is not None:
            data["attempt"] = message.attempt
        if entity in started and not isinstance(message, Admitted | Started):
            data["duration_ms"] = round((fact.time - started[entity]).total_seconds() * 1000)
        if isinstance(message, RetryScheduled | Exhausted | Failed) and message.error is not None:
            data["error"] = message.error.model_dump(exclude_none=True, exclude={"traceback"})
        yield (
            fact,
            {
                "specversion": "1.0",
                "id": f"evt_{fact.sequence}",
                "type": kind,
                "source": "/ojs/v1",
                "time": instant(fact.time),
                "subject": data["job_id"],
                "data": data,
            },
        )


def _workflow_events(fact: Recorded[Message], workflow: WorkflowEvents) -> Iterable[_Event]:
    for kind, subject, data in workflow.take(fact):
        yield (
            fact,
            {
                "specversion": "1.0",
                "id": f"evt_{fact.sequence}_{kind.replace('.', '_')}",
                "type": kind,
                "source": "/ojs/v1",
                "time": instant(fact.time),
                "subject": subject,
                "data": data,
            },
        )


def _split(joined: str | None) -> set[str]:
    return {part.strip() for part in (joined or "").split(",")} - {""}
