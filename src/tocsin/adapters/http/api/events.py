"""`/v1/events`: stored events and public events as server-sent events.

A client that reconnects continues where it stopped.

The id of a server-sent event is the reader's position in both streams, `<ledger>.<log>`. A browser sends it back as
`Last-Event-ID`, any other client as `after`. Values that only workers may see are masked.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from ....domain.access import Permission, Principal, masked
from ....domain.definition import Name
from ....domain.events import Message, Recorded
from ....services import tail
from ....services.event_feeds import PORTION, EventFeeds, FeedEvent
from ....subjects import Stream
from ..auth.security import HistoryReader, still_permitted
from .dependencies import Components, Here
from .problems import invalid


class StoredFact(BaseModel, use_attribute_docstrings=True):
    """A stored event with its place in the log."""

    time: datetime
    """When the log stored it."""
    sequence: int
    """The position in its stream."""
    subject: str
    fact: dict[str, Any]
    """The event, as `schemas/events` describes its `type`, or the `event` of a public event such as `cron.skipped`."""

    @classmethod
    def of(cls, recorded: Recorded[Message]) -> "StoredFact":
        """Return an event without masked values."""
        fact = masked(recorded.message).document(exclude_none=True)
        return cls(time=recorded.time, sequence=recorded.sequence, subject=recorded.subject, fact=fact)


KEEP_ALIVE_S: Final = 15.0
"""Interval of comments that keep an idle connection open, and of the checks of the caller's token."""
TOO_SLOW: Final = "the client reads too slowly, and can continue from its last event"
NO_LONGER: Final = "the token of the client no longer permits it"
"""Comments that end a stream."""
_PLACE: Final = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}")
_STREAMS: Final = (Stream.LEDGER, Stream.LOG)

router = APIRouter(prefix="/v1/events", tags=["events"])


@router.get(
    "",
    operation_id="streamEvents",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Stored events, until the client disconnects.",
            "content": {"text/event-stream": {}},
        },
    },
)
async def stream_events(
    here: Here,
    caller: HistoryReader,
    request: Request,
    job: Annotated[Name | None, Query(description="Return events of this job only.")] = None,
    type: Annotated[list[str] | None, Query(description="Return events of these types only.")] = None,
    after: Annotated[
        str | None, Query(description="The id of the last event that the client has; `0.0`: from the start.")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="The same as `after`, as browsers send it.")] = None,
) -> StreamingResponse:
    """Follow events from now on, or from the position after the last known event.

    The answer ends when the client reads too slowly, and can continue from its last event. It also ends when the caller's token
    expires, is revoked, or no longer permits it.
    """
    last_id = after if after is not None else last_event_id
    feeds = cast("EventFeeds", request.app.state.feeds)
    places = _places(last_id) if last_id else await tail.newest(here.log, job, public=True)
    wanted = frozenset(type or ())
    closing = cast("asyncio.Event", request.app.state.closing)
    return _Stream(
        feeds.place(caller.account, caller.namespaces),
        _events(here, _Access(request, caller), feeds.follow(job, places), wanted, closing, feeds.turn),
    )


class _Stream(StreamingResponse):
    """An endless answer that holds a place, or is refused without a place."""

    def __init__(self, place: AbstractContextManager[None], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._place = place

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


class _Access:
    """The caller of a stream, authenticated again while it lasts."""

    def __init__(self, request: Request, caller: Principal) -> None:
        self._request = request
        self._caller: Principal | None = caller
        self._checked_at = asyncio.get_running_loop().time()

    async def caller(self) -> Principal | None:
        """Return the caller with permissions at most `KEEP_ALIVE_S` old; None: not permitted."""
        now = asyncio.get_running_loop().time()
        if self._caller is not None and now - self._checked_at >= KEEP_ALIVE_S:
            self._checked_at = now
            self._caller = await still_permitted(self._request, self._caller, Permission.HISTORY)
        return self._caller


async def _events(
    here: Components,
    access: _Access,
    follower: AsyncGenerator[Sequence[FeedEvent], None],
    types: frozenset[str],
    closing: asyncio.Event,
    turn: asyncio.Semaphore,
) -> AsyncIterator[bytes]:
    closed = asyncio.ensure_future(closing.wait())
    pending = asyncio.ensure_future(anext(follower, None))
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    try:
        yield b"retry: 2000\n\n"
        while not closed.done():
            rest = max(0.0, sent_at + KEEP_ALIVE_S - clock())
            await asyncio.wait({pending, closed}, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            events = pending.result() if pending.done() else ()
            if events is None:  # the feed has ended
                yield f": {TOO_SLOW}\n\n".encode()
                break
            if pending.done():
                pending = asyncio.ensure_future(anext(follower, None))
            async for frames in _frames(here, access, events, types, turn):
                yield frames
                sent_at = clock()
            if await access.caller() is None:
                yield f": {NO_LONGER}\n\n".encode()
                break
            # Events that the caller may not see postpone nothing: it neither learns of them, nor loses the connection by them.
            if clock() >= sent_at + KEEP_ALIVE_S:
                yield b": nothing new\n\n"
                sent_at = clock()
    finally:
        closed.cancel()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await follower.aclose()


async def _frames(
    here: Components, access: _Access, events: Sequence[FeedEvent], types: frozenset[str], turn: asyncio.Semaphore
) -> AsyncIterator[bytes]:
    """Yield the events that the caller may see, in portions for slow readers."""
    for first in range(0, len(events), PORTION):
        caller = await access.caller()
        if caller is None:
            return
        await asyncio.sleep(0)  # writing to a client that reads fast does not wait
        async with turn:
            frames = [
                _frame(event)
                for event in events[first : first + PORTION]
                if (not types or _type_of(event.recorded.message) in types)
                and await here.visibility.may_see_event(caller, event.recorded)
            ]
        if frames:
            yield b"".join(frames)


def _frame(event: FeedEvent) -> bytes:
    if not event.frame:
        place = ".".join(str(event.places.get(stream, 0)) for stream in _STREAMS)
        kind, fact = _type_of(event.recorded.message), StoredFact.of(event.recorded)
        event.frame = f"id: {place}\nevent: {kind}\ndata: {fact.model_dump_json()}\n\n".encode()
    return event.frame


def _type_of(message: Message) -> str:
    """Return the type of an event; a public event names it `event`."""
    return str(getattr(message, "type", None) or getattr(message, "event", "event"))


def _places(written: str) -> dict[Stream, int]:
    if not _PLACE.fullmatch(written):
        raise invalid("Last-Event-ID", written, "must be the id of an event, such as `12.345`")
    return dict(zip(_STREAMS, map(int, written.split(".")), strict=True))
