"""`GET /ojs/v1/events`: recent events (ojs-events, ojs-cron §9). `/v1/events` streams events."""

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Query

from .... import subjects
from ....domain.access import Principal
from ....domain.events import Message, PublicEvent, QueuePaused, QueueResumed, Recorded, unfold
from ....ports import pages
from ....ports.queries import microseconds
from ....subjects import Stream
from ..api.dependencies import Components, Here
from ..auth.security import HistoryReader
from .job_events import JobEvents
from .job_view import instant
from .protocol import OjsResponse, documented
from .workflow_events import WorkflowEvents, is_of_workflow

WINDOW: Final = 2_000
"""Sequences of the log, or of the ledger, that are read together."""
MAX_WINDOWS: Final = 5
"""Windows of the log that a page searches, newest first. Then it may be short, and its cursor continues."""
PAGE_SIZE: Final = 500
"""Messages of one read."""
MAX_LIMIT: Final = 1_000
LATEST: Final = 10**18
"""An instant after all others, in microseconds since 1970."""

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
    cursor: Annotated[
        str | None,
        Query(description="Continue after a page: its `next_cursor`.", pattern=r"^[0-9]{1,19}-[0-9]{1,18}$"),
    ] = None,
) -> dict[str, Any]:
    """List recent events, newest first.

    A request searches a limited part of the log, from the cursor on, so a page may be short or empty; `next_cursor` continues
    the list, and is null at its end. Events of the same instant are on one page, which may exceed `limit` by them.
    """
    wanted_types, wanted_queues = _split(types), _split(queues)

    def is_wanted(event: _Event) -> bool:
        of_type = not wanted_types or event[1]["type"] in wanted_types
        return of_type and (not wanted_queues or event[1]["data"].get("queue") in wanted_queues)

    newest, first = await asyncio.gather(here.log.end(Stream.LOG), here.stored.first(Stream.LOG))
    before, upper = (newest + 1, LATEST) if cursor is None else map(int, cursor.split("-"))
    end, floor = min(newest, before - 1), upper
    if wanted_types and all(kind.startswith("queue.") for kind in wanted_types):
        end = 0  # the log has none
    facts, announced, events = list[Recorded[Message]](), list[Recorded[Message]](), list[_Event]()
    for _ in range(MAX_WINDOWS):
        if end < first or len(events) >= limit:
            break
        begin = max(first - 1, end - WINDOW)
        windows = [_window(here, each, begin, end) for each in ("execution.>", subjects.PUBLIC_EVENTS)]
        of_jobs, of_schedules = await asyncio.gather(*windows)
        floor = min(floor, *(_instant_of(recorded) for recorded in (*of_jobs[:1], *of_schedules[:1])), LATEST)
        facts, announced = [*_reached(caller, of_jobs), *facts], [*_reached(caller, of_schedules), *announced]
        events = [
            event
            for event in (*_events(here, facts), *_cron_events(here, announced))
            if is_wanted(event) and await here.visibility.may_see_event(caller, event[0])
        ]
        end = begin
    floor = floor if end >= first else -LATEST
    of_queues = _queue_events(here, caller, await _newest(here, subjects.queue_events()))
    decided = [event for event in of_queues if is_wanted(event) and floor <= _instant_of(event[0]) < upper]
    found = sorted((*events, *decided), key=_time_of)[::-1]
    cut = _time_of(found[limit - 1]) if len(found) > limit else floor
    end = max((recorded.sequence for recorded, _ in events if _instant_of(recorded) < cut), default=end)
    page = [event for recorded, event in found if _instant_of(recorded) >= cut]
    is_end = end < first and len(page) == len(found)
    return {"events": page, "next_cursor": None if is_end else f"{end + 1}-{max(cut, 0)}"}


async def _newest(here: Components, subject_filter: str) -> list[Recorded[Message]]:
    newest = await here.log.last(subject_filter)
    if newest is None:
        return []
    return await _window(here, subject_filter, max(0, newest.sequence - WINDOW), newest.sequence)


async def _window(here: Components, subject_filter: str, begin: int, end: int) -> list[Recorded[Message]]:
    """Return the messages whose sequences are in (begin, end], oldest first."""
    window: list[Recorded[Message]] = []
    async for page in pages(here.log, subject_filter, after=begin, limit=PAGE_SIZE):
        window += [recorded for recorded in page if recorded.sequence <= end]
        if page[-1].sequence >= end:
            break
    return window


def _reached(caller: Principal, window: Iterable[Recorded[Message]]) -> list[Recorded[Message]]:
    """Return the messages of jobs in the namespaces of a caller."""
    return [recorded for recorded in window if caller.reaches(subjects.job_of(recorded.subject))]


def _instant_of(recorded: Recorded[Message]) -> int:
    return microseconds(recorded.time)


def _time_of(event: _Event) -> int:
    return _instant_of(event[0])


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
