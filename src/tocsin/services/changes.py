"""Changes by people and programs, newest first: of jobs, and of the installation.

The ledger also holds every instant of every job. It is read backwards in windows, whose width follows the number of changes in
them, so that a page costs a bounded number of reads wherever it is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from .. import subjects
from ..domain.definition import JobDefinition
from ..domain.definition_changes import changed_fields
from ..domain.events import (
    Actor,
    AgentDrainStarted,
    AgentGranted,
    AgentSwitched,
    Defined,
    DefinitionFact,
    Deleted,
    Message,
    NamespacesDefined,
    Paused,
    PolicyDefined,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
    Resumed,
    ShardsDefined,
    SilencesDefined,
    Voided,
)
from ..ports import EventLog, pages
from ..subjects import Stream
from .jobs import each
from .past_reader import SeesEvent

ChangeType: TypeAlias = Literal[
    "created",
    "updated",
    "paused",
    "resumed",
    "deleted",
    "agent-switched",
    "agent-granted",
    "agent-drained",
    "queue-paused",
    "queue-resumed",
    "queue-purged",
    "policy-defined",
    "shards-defined",
    "namespaces-defined",
    "silences-defined",
    "voided",
]

FIRST_WINDOW: Final = 256
GROWTH: Final = 8
MAX_WINDOWS: Final = 40
"""Windows that a page reads. Then it may be short, and its cursor continues."""
MAX_PER_WINDOW: Final = 1_000
"""Events of a filter in a window; a window with more is made smaller."""
MAX_EXAMINED: Final = 2_000

_TYPES: Final[Mapping[type[Message], ChangeType]] = {
    Paused: "paused",
    Resumed: "resumed",
    Deleted: "deleted",
    AgentSwitched: "agent-switched",
    AgentGranted: "agent-granted",
    AgentDrainStarted: "agent-drained",
    QueuePaused: "queue-paused",
    QueueResumed: "queue-resumed",
    QueuePurged: "queue-purged",
    PolicyDefined: "policy-defined",
    ShardsDefined: "shards-defined",
    NamespacesDefined: "namespaces-defined",
    SilencesDefined: "silences-defined",
    Voided: "voided",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job or of the installation."""

    sequence: int
    """Its place in the ledger."""
    time: datetime
    type: ChangeType
    name: str | None
    """The job, the agents or the queue; None: the whole installation."""
    by: Actor | None
    """The identity that made the change, if it is known."""
    reason: str | None
    fields: tuple[str, ...] = ()
    """The fields of the definition that an update changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilter:
    """The conditions of a list of changes. A field that is None filters nothing."""

    job: str | None = None
    by: str | None = None
    """An identity with or without its kind."""
    types: Collection[ChangeType] | None = None

    def includes(self, message: Message) -> bool:
        """Return whether an event meets the conditions, apart from the job."""
        kind = type_of(message)
        by: Actor | None = getattr(message, "by", None)
        return (
            kind is not None
            and (self.types is None or kind in self.types)
            and (self.by is None or (by is not None and self.by in {by.identity, by.full_name}))
        )


def type_of(message: Message) -> ChangeType | None:
    """Return the type of a change; None: a stage stored the event."""
    if isinstance(message, Defined):
        return "created" if message.created_at is None else "updated"
    return _TYPES.get(type(message))


async def changes(
    log: EventLog, wanted: ChangeFilter, sees: SeesEvent, *, before: int | None, limit: int
) -> tuple[Sequence[Change], int | None]:
    """Return a page of changes, newest first, and the place of the next page.

    A place is the sequence before which a page begins; None: the first page, or no change is older.
    """
    found, following = await _newest(log, wanted, sees, before=before, limit=limit)
    definitions = await each(found, lambda recorded: _definition_before(log, recorded))
    return [_change(recorded, old) for recorded, old in zip(found, definitions, strict=True)], following


async def _newest(
    log: EventLog, wanted: ChangeFilter, sees: SeesEvent, *, before: int | None, limit: int
) -> tuple[Sequence[Recorded[Message]], int | None]:
    filters = subjects.change_filters(wanted.job)
    end = await log.end(Stream.LEDGER) if before is None else before - 1
    width, examined = FIRST_WINDOW, 0
    found = list[Recorded[Message]]()
    for _ in range(MAX_WINDOWS):
        if end <= 0:
            return found, None
        begin = max(0, end - width)
        window = await _window(log, filters, begin, end)
        if window is None:
            width = max(1, width // GROWTH)
            continue
        for recorded in window:
            examined += 1
            if wanted.includes(recorded.message) and await sees(recorded):
                found.append(recorded)
            if len(found) == limit or examined == MAX_EXAMINED:
                return found, recorded.sequence
        end, width = begin, width * GROWTH
    return found, end + 1


async def _window(log: EventLog, filters: Sequence[str], begin: int, end: int) -> Sequence[Recorded[Message]] | None:
    """Return the events in (begin, end], newest first; None: there are too many."""
    events = list[Recorded[Message]]()
    for subject in filters:
        of_subject = list[Recorded[Message]]()
        async for page in pages(log, subject, after=begin, until=end):
            of_subject += page
            if len(of_subject) > MAX_PER_WINDOW:
                return None
        events += of_subject
    return sorted(events, key=lambda recorded: recorded.sequence, reverse=True)


async def _definition_before(log: EventLog, recorded: Recorded[Message]) -> JobDefinition | None:
    """Return the definition that an update replaced.

    None: the event is no update, or the definition cannot be read.
    """
    fact: Message | None = recorded.message
    if not isinstance(fact, Defined) or fact.created_at is None:
        return None
    scope, sequence = subjects.ledger(fact.job), fact.previous
    while sequence:
        before = await log.get(scope, sequence)
        fact = None if before is None else before.message
        if isinstance(fact, Defined):
            return fact.definition
        sequence = fact.definition if isinstance(fact, Paused | Resumed) else 0
    return None


def _change(recorded: Recorded[Message], old: JobDefinition | None) -> Change:
    fact: Any = recorded.message
    kind = type_of(fact)
    if kind is None:
        raise AssertionError(f"{recorded.subject}: no change")
    fields = () if old is None else tuple(dict.fromkeys(diff.field for diff in changed_fields(old, fact.definition)))
    return Change(
        sequence=recorded.sequence,
        time=recorded.time,
        type=kind,
        name=_name(fact),
        by=fact.by,
        reason=fact.reason,
        fields=fields,
    )


def _name(fact: Any) -> str | None:  # noqa: ANN401 - one of the events of `_TYPES`
    match fact:
        case DefinitionFact():
            return fact.job
        case AgentSwitched() | AgentGranted() | AgentDrainStarted():
            return fact.name
        case QueuePaused() | QueueResumed() | QueuePurged():
            return fact.queue
        case _:
            return None
