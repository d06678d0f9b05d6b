"""`GET /ojs/v1/events`: recent events (ojs-events, ojs-cron §9). `/v1/events` streams events."""

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Query

from .... import subjects
from ....domain.access import Principal
from ....domain.events import Message, PublicEvent, QueueFact, QueuePaused, QueueResumed, Recorded, unfold
from ....ports import pages
from ..api.dependencies import Components, Here
from ..auth.security import HistoryReader
from .job_events import JobEvents
from .job_view import instant
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
    filters = ("execution.>", subjects.PUBLIC_EVENTS, subjects.queue_events())
    facts, announced, decided = await asyncio.gather(*(_newest(here, each) for each in filters))
    found = (*_events(here, facts), *_cron_events(here, announced), *_queue_events(here, caller, decided))
    wanted_types, wanted_queues = _split(types), _split(queues)
    events = [
        event
        for recorded, event in sorted(found, key=_time_of)
        if (not wanted_types or event["type"] in wanted_types)
        and (not wanted_queues or event["data"].get("queue") in wanted_queues)
        and (isinstance(recorded.message, QueueFact) or await here.visibility.may_see_event(caller, recorded))
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


def _cron_events(here: Components, announced: Iterable[Recorded[Message]]) -> Iterable[_Event]:
    """Yield public events; a `cron.missed` stands for `count` skipped occurrences."""
    for fact in announced:
        if isinstance(event := fact.message, PublicEvent):
            data = event.data.model_dump(mode="json")
            yield fact, _envelope(here, fact, event.event, event.data.cron_name, data)


def _events(here: Components, facts: Iterable[Recorded[Message]]) -> Iterable[_Event]:
    readers: dict[str, JobEvents | WorkflowEvents] = {}
    for fact in unfold(facts):
        entity = subjects.entity_of(fact.subject)
        reader = readers.get(entity)
        if reader is None:
            is_workflow = is_of_workflow(fact.message)
            reader = readers[entity] = WorkflowEvents(entity.rpartition(".")[2]) if is_workflow else JobEvents()
        for kind, subject, data in reader.take(fact):
            yield fact, _envelope(here, fact, kind, subject, data)


def _queue_events(here: Components, caller: Principal, facts: Iterable[Recorded[Message]]) -> Iterable[_Event]:
    """Yield the events of the queues that a caller reaches."""
    for fact in facts:
        event = fact.message
        if isinstance(event, QueuePaused | QueueResumed) and caller.reaches(event.queue):
            data = {"queue": event.queue, **({"reason": event.reason} if event.reason else {})}
            yield fact, _envelope(here, fact, f"queue.{event.type}", event.queue, data)


def _envelope(
    here: Components, fact: Recorded[Message], kind: str, subject: str, data: dict[str, Any]
) -> dict[str, Any]:
    """Return an event.

    Its id names the stored event and the type, since a stored event may stand for several.
    """
    return {
        "specversion": "1.0",
        "id": f"evt_{fact.sequence}_{kind.replace('.', '_')}",
        "type": kind,
        "source": f"ojs://{here.settings.root}/events",
        "time": instant(fact.time),
        "subject": subject,
        "data": data,
    }


def _split(joined: str | None) -> set[str]:
    return {part.strip() for part in (joined or "").split(",")} - {""}
