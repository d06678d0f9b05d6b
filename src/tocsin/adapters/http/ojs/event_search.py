"""The search for a page of events, newest first."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from fastapi import Query, Request

from .... import subjects
from ....domain import events
from ....domain.access import Principal
from ....domain.events import Message, Recorded, admission_of, unfold
from ....ports import pages
from ....ports.queries import microseconds
from ....subjects import DecodeError, Stream
from ..api.dependencies import Components, Here, until_disconnect
from ..auth.security import HistoryReader
from .job_events import JobEvents, WorkflowEvents, is_of_workflow
from .job_view import instant
from .protocol import ojs_router

PAGE_SIZE: Final = 250
EXECUTIONS: Final = "execution.>"
MAX_EARLIER: Final = 10_000
"""Messages before their part that a list loads. Beyond it, executions that began before show only the messages that were loaded."""
LOADED_TOGETHER: Final = 8
"""Executions of which earlier messages are loaded in one request."""
_LATER: Final = (
    *(events.Dispatched, events.Started, events.Released, events.RetryScheduled, events.Advanced, events.Exhausted),
    *(events.Recovered, events.Completed, events.Failed, events.Cancelled),
)
"""Stored events that follow others of their execution, whose list entries need its beginning."""
_FOLDED_AT_ONCE: Final = 50
"""Messages between which other requests get their turn."""

Event: TypeAlias = tuple[Recorded[Message], dict[str, Any]]
"""A stored event, and what the client receives of it."""
IsWanted: TypeAlias = Callable[[dict[str, Any]], bool]
Reader: TypeAlias = JobEvents | WorkflowEvents


def of_queues(root: str, caller: Principal, facts: Iterable[Recorded[Message]]) -> Iterable[Event]:
    """Yield the events of the queues that a caller reaches."""
    for fact in facts:
        event = fact.message
        if isinstance(event, events.QueuePaused | events.QueueResumed) and caller.reaches(event.queue):
            data = {"queue": event.queue, **({"reason": event.reason} if event.reason else {})}
            yield fact, _envelope(root, fact, f"queue.{event.type}", event.queue, data)


def _envelope(root: str, fact: Recorded[Message], kind: str, subject: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an event, one of several that a stored event may stand for."""
    return {
        "specversion": "1.0",
        "id": f"evt_{fact.sequence}_{kind.replace('.', '_')}",
        "type": kind,
        "source": f"ojs://{root}/events",
        "time": instant(fact.time),
        "subject": subject,
        "data": data,
    }


class Window(NamedTuple):
    """The events of a part of the log."""

    events: list[Event]
    """The events of each execution are oldest first."""
    times: dict[int, int]
    """The times of all its messages by their sequences, in microseconds since 1970."""


@dataclass(slots=True)
class WindowReader:
    """Reads parts of the log for one caller."""

    here: Components
    caller: Principal
    is_wanted: IsWanted
    earlier_left: int = field(default=MAX_EARLIER)

    async def read(self, begin: int, end: int) -> Window:
        """Return the wanted and visible events of the sequences in (begin, end]."""
        window = Window([], {})
        await self._read_executions(begin, end, window)
        async for page in window_pages(self.here, subjects.PUBLIC_EVENTS, begin, end):
            window.times.update((recorded.sequence, microseconds(recorded.time)) for recorded in page)
            for fact in self._reached(page):
                if isinstance(event := fact.message, events.PublicEvent):
                    data = event.data.document()  # a `cron.missed` stands for `count` skipped occurrences
                    shown = _envelope(self.here.settings.root, fact, event.event, event.data.cron_name, data)
                    if self.is_wanted(shown) and await self.here.visibility.may_see_event(self.caller, fact):
                        window.events.append((fact, shown))
        return window

    async def _read_executions(self, begin: int, end: int, window: Window) -> None:
        readers: dict[str, Reader | None] = {}
        async for page in window_pages(self.here, EXECUTIONS, begin, end):
            window.times.update((recorded.sequence, microseconds(recorded.time)) for recorded in page)
            reached = self._reached(page)
            await self._add_readers(readers, reached, begin)
            for place, fact in enumerate(unfold(reached), 1):
                if (reader := readers[subjects.entity_of(fact.subject)]) is not None:
                    root = self.here.settings.root
                    found = ((fact, _envelope(root, fact, *of_fact)) for of_fact in reader.take(fact))
                    window.events.extend(event for event in found if self.is_wanted(event[1]))
                if place % _FOLDED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _add_readers(
        self, readers: dict[str, Reader | None], facts: Iterable[Recorded[Message]], begin: int
    ) -> None:
        """Add the missing readers of executions; None: the execution is hidden."""
        begun_before: list[Recorded[Message]] = []
        for fact in facts:
            entity = subjects.entity_of(fact.subject)
            if entity in readers:
                continue
            is_seen = await self.here.visibility.may_see_event(self.caller, fact)
            new = WorkflowEvents(entity.rpartition(".")[2]) if is_of_workflow(fact.message) else JobEvents()
            readers[entity] = new if is_seen else None
            if is_seen and isinstance(fact.message, _LATER) and admission_of(fact) is None:
                begun_before.append(fact)
        for first in range(0, len(begun_before), LOADED_TOGETHER):
            if self.earlier_left <= 0:
                return
            for earlier in await self._earlier(begun_before[first : first + LOADED_TOGETHER], begin):
                for fact in unfold(earlier):
                    if (reader := readers[subjects.entity_of(fact.subject)]) is not None:
                        for _ in reader.take(fact):
                            pass

    async def _earlier(self, facts: Sequence[Recorded[Message]], begin: int) -> list[list[Recorded[Message]]]:
        """Return the messages of executions before a part of the log, oldest first."""
        scopes = [subjects.execution_scope(fact.subject) for fact in facts]
        loaded: list[Sequence[Recorded[Message]]] = []
        try:
            loaded = list((await self.here.log.load_each(*scopes)).facts)
        except DecodeError:
            for scope in scopes:
                with suppress(DecodeError):  # then the execution has what is known of it
                    loaded.append(await self.here.log.load(scope))
        self.earlier_left -= sum(map(len, loaded))
        return [[recorded for recorded in messages if recorded.sequence <= begin] for messages in loaded]

    def _reached(self, page: Iterable[Recorded[Message]]) -> list[Recorded[Message]]:
        return [recorded for recorded in page if self.caller.reaches(subjects.job_of(recorded.subject))]


def window_pages(
    here: Components, subject_filter: str, begin: int, end: int
) -> AsyncIterator[Sequence[Recorded[Message]]]:
    """Yield the messages whose sequences are in (begin, end], oldest first."""
    return pages(here.log, subject_filter, after=begin, until=end, limit=PAGE_SIZE)


WINDOW: Final = 2_000
"""Sequences of the log that are read together, and of the ledger at first."""
MAX_QUEUE_EVENTS: Final = 2_000
"""Events of queues that are searched at least, the newest of all."""
WINDOW_GROWTH: Final = 4
"""Each part of the ledger is as many times larger than the last, since its other events are not read."""
MAX_WINDOWS: Final = 5
"""Windows of the log that a page searches, newest first. Then it may be short, and its position continues."""
MAX_STEP_BACK: Final = 3_600_000_000
"""Microseconds by which the time of a newer event may be earlier, since a new leader of the stream may have a slower clock."""
LATEST: Final = 10**18 - 1
"""An instant after all others, in microseconds since 1970."""
EARLIEST: Final = 0
MAX_LIMIT: Final = 1_000

router = ojs_router("/ojs/v1/events")


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
        shown, following = await until_disconnect(request, search.page(start, limit))
    return {"events": shown, "next_cursor": None if following is None else f"{following.sequence}-{following.instant}"}


def _split(joined: str | None) -> set[str]:
    return {part.strip() for part in (joined or "").split(",")} - {""}


class Position(NamedTuple):
    """The place where a page begins."""

    sequence: int
    """The events of the log are before it."""
    instant: int
    """Microseconds since 1970. The events of queues are before it, and no event of the log is taken as later."""


class _Place(NamedTuple):
    """The place of an event in the list, whose order is that of its fields.

    At one instant, the events of queues are newer than those of the log, so that a page may end between two events of the log.
    """

    instant: int
    is_of_queue: bool
    sequence: int
    """Of the log, or of the ledger."""


class _Found(NamedTuple):
    events: list[Event]
    instants: dict[int, int]
    """The instants of the events, by their sequences. None is before that of an older event."""
    end: int
    """The newest sequence that was not searched."""
    since: int
    """The instant since which everything was searched."""
    is_whole: bool
    """Nothing older is left."""


@dataclass(frozen=True, slots=True)
class EventSearch:
    """Searches for the events that a caller may see and wants.

    The log has the events of jobs and schedules, and the ledger those of queues. They are put together by their instants. The order of
    the log counts before its instants, which step back when the stream gets a leader with a slower clock: the instant of an event
    of the log is the earliest from it to the newest event. Otherwise a page could end before events that the next begins with.
    """

    here: Components
    caller: Principal
    is_wanted: IsWanted
    only_queues: bool
    """Only events of queues are wanted."""

    async def page(self, start: Position | None, limit: int) -> tuple[list[dict[str, Any]], Position | None]:
        """Return the events before a position, newest first, and the place of the next page.

        It has `limit` events, and more by those of the same stored event as its last, or by the events of queues of the same instant. It
        may have fewer, or none, also before the end of the list.
        """
        found = await self._in_log(start, limit)
        upper = LATEST if start is None else start.instant
        of_queues = await self._of_queues(found.since, upper)
        places = [
            *(
                (_Place(found.instants[fact.sequence], is_of_queue=False, sequence=fact.sequence), shown)
                for fact, shown in found.events
            ),
            *(
                (_Place(microseconds(fact.time), is_of_queue=True, sequence=fact.sequence), shown)
                for fact, shown in of_queues
            ),
        ]
        # Python's sort is stable, so the events of one stored event are reversed too
        places = sorted(places, key=itemgetter(0))[::-1]
        if len(places) <= limit:
            shown, rest = places, []
        else:
            last = places[limit - 1][0]
            last = last._replace(sequence=0) if last.is_of_queue else last
            shown = [each for each in places if each[0] >= last]
            rest = places[len(shown) :]
        views = [event for _, event in shown]
        if found.is_whole and not rest:
            return views, None
        # what is older than the page is searched again
        end = max((place.sequence for place, _ in rest if not place.is_of_queue), default=found.end)
        return views, Position(end + 1, shown[-1][0].instant if rest else found.since)

    async def _in_log(self, start: Position | None, limit: int) -> _Found:
        newest = await self.here.log.end(Stream.LOG)
        before, since = (newest + 1, LATEST) if start is None else start
        end = 0 if self.only_queues else min(newest, before - 1)
        reader = WindowReader(self.here, self.caller, self.is_wanted)
        found, instants = list[Event](), dict[int, int]()
        for _ in range(MAX_WINDOWS):
            if not end or len(found) >= limit:
                break
            begin = max(0, end - WINDOW)
            window = await reader.read(begin, end)
            of_events = {event[0].sequence for event in window.events}
            for sequence in sorted(window.times, reverse=True):
                since = min(since, window.times[sequence])
                if sequence in of_events:
                    instants[sequence] = since
            found = [*window.events, *found]
            end = begin
        is_whole = not end
        return _Found(found, instants, end, EARLIEST if is_whole else since, is_whole)

    async def _of_queues(self, since: int, upper: int) -> list[Event]:
        """Return the events of queues in a span of time, up to a number searched."""
        newest = await self.here.log.last(subjects.queue_events())
        end, width, searched = 0 if newest is None else newest.sequence, WINDOW, 0
        found: list[Event] = []
        while end > 0 and searched < MAX_QUEUE_EVENTS:
            begin, oldest, part = max(0, end - width), upper, list[Event]()
            async for page in window_pages(self.here, subjects.queue_events(), begin, end):
                searched += len(page)
                oldest = min(oldest, microseconds(page[0].time))
                for event in of_queues(self.here.settings.root, self.caller, page):
                    if self.is_wanted(event[1]) and since <= microseconds(event[0].time) < upper:
                        part.append(event)
            found = [*part, *found]
            if oldest + MAX_STEP_BACK < since:
                break
            end, width = begin, width * WINDOW_GROWTH
        return found
