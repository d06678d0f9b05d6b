"""`GET /ojs/v1/events`: recent events (ojs-events, ojs-cron §9). `/v1/events` streams events."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request

from ..api.dependencies import Here, until_disconnect
from ..auth.security import HistoryReader
from .event_search import EventSearch, Position
from .protocol import OjsResponse, documented

MAX_LIMIT: Final = 1_000

router = APIRouter(
    prefix="/ojs/v1/events",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 422, 429, 500, 503),
)


@router.get("", operation_id="listEvents")
async def list_events(
    here: Here,
    caller: HistoryReader,
    request: Request,
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
    the list, and is null at its end. Events of the same change are on one page, which may exceed `limit` by them.
    """
    wanted_types, wanted_queues = _split(types), _split(queues)

    def is_wanted(event: dict[str, Any]) -> bool:
        of_type = not wanted_types or event["type"] in wanted_types
        return of_type and (not wanted_queues or event["data"].get("queue") in wanted_queues)

    only_queues = bool(wanted_types) and all(kind.startswith("queue.") for kind in wanted_types)
    start = None if cursor is None else Position(*map(int, cursor.split("-")))
    search = EventSearch(here, caller, is_wanted, only_queues)
    async with here.event_searches.turn(caller.party):
        events, following = await until_disconnect(request, search.page(start, limit))
    return {"events": events, "next_cursor": None if following is None else f"{following.sequence}-{following.instant}"}


def _split(joined: str | None) -> set[str]:
    return {part.strip() for part in (joined or "").split(",")} - {""}
