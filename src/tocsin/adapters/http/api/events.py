"""`/v1/events`: facts as they are stored, as server-sent events; whoever comes back goes on where they were.

The id of an event is the place of its reader in both streams, `<ledger>.<log>`: what the browser sends back as
`Last-Event-ID`, or anybody as `after`.

Facts as clients are shown them: what the log stored, but for what only executors may know.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import StreamingResponse

from ....domain.access import Principal, masked
from ....domain.definition import Name
from ....domain.events import Message, Recorded
from ....services import tail
from ....subjects import Stream, job_of, stream_of
from ..auth.security import Reader
from .dependencies import Components, Here
from .problems import invalid


class StoredFact(BaseModel):
    """A fact with everything that the log knows about it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    time: datetime
    """When the log stored it."""
    sequence: int
    """In its stream."""
    subject: str
    fact: dict[str, Any]
    """As `schemas/events` describes it, `type` by `type`."""

    @classmethod
    def of(cls, recorded: Recorded[Message]) -> "StoredFact":
        """A fact as it may be shown."""
        fact = masked(recorded.message).model_dump(mode="json", exclude_none=True)
        return cls(time=recorded.time, sequence=recorded.sequence, subject=recorded.subject, fact=fact)


KEEP_ALIVE: Final = 15.0
"""Seconds after which a comment tells that nothing happened."""
_PLACE: Final = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}")
_STREAMS: Final = (Stream.LEDGER, Stream.LOG)

router = APIRouter(prefix="/v1/events", tags=["events"])


@router.get(
    "",
    operation_id="streamEvents",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Facts, one event each, for as long as it is listened to.",
            "content": {"text/event-stream": {}},
        },
    },
)
async def stream_events(
    here: Here,
    caller: Reader,
    request: Request,
    job: Annotated[Name | None, Query(description="Only of this job.")] = None,
    type: Annotated[list[str] | None, Query(description="Only facts of these types.")] = None,  # noqa: A002 - as it is called
    after: Annotated[
        str | None, Query(description="The id of the last event that is known; `0.0`: from the start.")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="The same, as browsers send it.")] = None,
) -> StreamingResponse:
    """Follow what happens, from now on or from where one was."""
    known = after if after is not None else last_event_id
    places = _places(known) if known else await tail.newest(here.log, job)
    wanted = frozenset(type or ())
    closing = cast("asyncio.Event", request.app.state.closing)
    return StreamingResponse(
        _events(here, caller, job, wanted, places, closing),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(
    here: Components,
    caller: Principal,
    job: str | None,
    types: frozenset[str],
    places: Mapping[Stream, int],
    closing: asyncio.Event,
) -> AsyncIterator[bytes]:
    at = dict(places)
    closed = asyncio.ensure_future(closing.wait())
    follower = tail.follow(here.log, job, after=places)
    coming = asyncio.ensure_future(anext(follower))
    try:
        yield b"retry: 2000\n\n"
        while not closed.done():
            await asyncio.wait({coming, closed}, timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                yield b": nothing new\n\n"
                continue
            recorded = coming.result()
            coming = asyncio.ensure_future(anext(follower))
            at[stream_of(recorded.subject)] = recorded.sequence
            if _is_wanted(recorded, types) and await here.sight.reaches(caller, job_of(recorded.subject)):
                yield _event(recorded, at)
    finally:
        closed.cancel()
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await follower.aclose()


def _event(recorded: Recorded[Message], at: Mapping[Stream, int]) -> bytes:
    place = ".".join(str(at.get(stream, 0)) for stream in _STREAMS)
    kind = getattr(recorded.message, "type", "event")
    return f"id: {place}\nevent: {kind}\ndata: {StoredFact.of(recorded).model_dump_json()}\n\n".encode()


def _is_wanted(recorded: Recorded[Message], types: frozenset[str]) -> bool:
    return not types or getattr(recorded.message, "type", None) in types


def _places(written: str) -> dict[Stream, int]:
    if not _PLACE.fullmatch(written):
        raise invalid("Last-Event-ID", written, "must be the id of an event, such as `12.345`")
    return dict(zip(_STREAMS, map(int, written.split(".")), strict=True))
