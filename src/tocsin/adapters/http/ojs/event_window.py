"""The events of one part of the log. Each message is folded once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from .... import subjects
from ....domain.access import Principal
from ....domain.events import (
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Message,
    PublicEvent,
    QueuePaused,
    QueueResumed,
    Recorded,
    Recovered,
    Released,
    RetryScheduled,
    Started,
    admission_of,
    unfold,
)
from ....ports import pages
from ....ports.queries import microseconds
from ....subjects import DecodeError
from ..api.dependencies import Components
from .job_events import JobEvents
from .job_view import instant
from .workflow_events import WorkflowEvents, is_of_workflow

PAGE_SIZE: Final = 250
"""Messages of one read."""
EXECUTIONS: Final = "execution.>"
MAX_EARLIER: Final = 10_000
"""Messages before their part that a list loads. Beyond it, executions that began before have what is known of them."""
LOADED_TOGETHER: Final = 8
"""Executions of which earlier messages are loaded in one request."""
_LATER: Final = (
    *(Dispatched, Started, Released, RetryScheduled, Advanced, Exhausted, Recovered),
    *(Completed, Failed, Cancelled),
)
"""Stored events that follow others of their execution, whose list entries need its beginning."""
_FOLDED_AT_ONCE: Final = 50
"""Messages between which other requests get their turn."""


Event: TypeAlias = tuple[Recorded[Message], dict[str, Any]]
"""A stored event, and what the client receives of it."""
IsWanted: TypeAlias = Callable[[dict[str, Any]], bool]
Reader: TypeAlias = JobEvents | WorkflowEvents
"""Reads the stored events of one execution."""


def of_schedules(root: str, facts: Iterable[Recorded[Message]]) -> Iterable[Event]:
    """Yield the events of cron jobs; a `cron.missed` stands for `count` skipped occurrences."""
    for fact in facts:
        if isinstance(event := fact.message, PublicEvent):
            data = event.data.document()
            yield fact, _envelope(root, fact, event.event, event.data.cron_name, data)


def reader_of(fact: Recorded[Message]) -> Reader:
    """Return a reader of the execution that a stored event belongs to."""
    if is_of_workflow(fact.message):
        return WorkflowEvents(subjects.entity_of(fact.subject).rpartition(".")[2])
    return JobEvents()


def of_queues(root: str, caller: Principal, facts: Iterable[Recorded[Message]]) -> Iterable[Event]:
    """Yield the events of the queues that a caller reaches."""
    for fact in facts:
        event = fact.message
        if isinstance(event, QueuePaused | QueueResumed) and caller.reaches(event.queue):
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
            for event in of_schedules(self.here.settings.root, self._reached(page)):
                if self.is_wanted(event[1]) and await self.here.visibility.may_see_event(self.caller, event[0]):
                    window.events.append(event)
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
                    events = ((fact, _envelope(root, fact, *of_fact)) for of_fact in reader.take(fact))
                    window.events.extend(event for event in events if self.is_wanted(event[1]))
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
            readers[entity] = reader_of(fact) if is_seen else None
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
        """Return the messages of jobs in the namespaces of the caller."""
        return [recorded for recorded in page if self.caller.reaches(subjects.job_of(recorded.subject))]


def window_pages(
    here: Components, subject_filter: str, begin: int, end: int
) -> AsyncIterator[Sequence[Recorded[Message]]]:
    """Yield the messages whose sequences are in (begin, end], oldest first."""
    return pages(here.log, subject_filter, after=begin, until=end, limit=PAGE_SIZE)
