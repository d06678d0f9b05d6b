"""Stored events as clients receive them (ojs-events, ojs-cron §9)."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from .... import subjects
from ....domain.access import Principal
from ....domain.events import Message, PublicEvent, QueuePaused, QueueResumed, Recorded
from .job_events import JobEvents
from .job_view import instant
from .workflow_events import WorkflowEvents, is_of_workflow

Event: TypeAlias = tuple[Recorded[Message], dict[str, Any]]
"""A stored event, and what the client receives of it."""
IsWanted: TypeAlias = Callable[[dict[str, Any]], bool]
Reader: TypeAlias = JobEvents | WorkflowEvents
"""Reads the stored events of one execution."""


def of_schedules(root: str, facts: Iterable[Recorded[Message]]) -> Iterable[Event]:
    """Yield the events of cron jobs; a `cron.missed` stands for `count` skipped occurrences."""
    for fact in facts:
        if isinstance(event := fact.message, PublicEvent):
            data = event.data.model_dump(mode="json")
            yield fact, _envelope(root, fact, event.event, event.data.cron_name, data)


def reader_of(fact: Recorded[Message]) -> Reader:
    """Return a reader of the execution that a stored event belongs to."""
    if is_of_workflow(fact.message):
        return WorkflowEvents(subjects.entity_of(fact.subject).rpartition(".")[2])
    return JobEvents()


def of_execution(root: str, reader: Reader, fact: Recorded[Message]) -> Iterable[Event]:
    """Yield the events of a stored event, the next for its reader."""
    for kind, subject, data in reader.take(fact):
        yield fact, _envelope(root, fact, kind, subject, data)


def of_queues(root: str, caller: Principal, facts: Iterable[Recorded[Message]]) -> Iterable[Event]:
    """Yield the events of the queues that a caller reaches."""
    for fact in facts:
        event = fact.message
        if isinstance(event, QueuePaused | QueueResumed) and caller.reaches(event.queue):
            data = {"queue": event.queue, **({"reason": event.reason} if event.reason else {})}
            yield fact, _envelope(root, fact, f"queue.{event.type}", event.queue, data)


def _envelope(root: str, fact: Recorded[Message], kind: str, subject: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an event.

    Its id names the stored event and the type, since a stored event may stand for several.
    """
    return {
        "specversion": "1.0",
        "id": f"evt_{fact.sequence}_{kind.replace('.', '_')}",
        "type": kind,
        "source": f"ojs://{root}/events",
        "time": instant(fact.time),
        "subject": subject,
        "data": data,
    }
