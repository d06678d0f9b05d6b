"""The changes to a job's definition."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Literal, TypeAlias

from ... import subjects
from ...domain.definition import JobDefinition
from ...domain.definition_changes import changed_fields
from ...domain.events import Defined, DefinitionFact, Recorded
from ...domain.replay import Past
from ...ports import EventLog
from ..operations.errors import NotFound
from ..past_reader import read_past
from .model import Window

VersionKind: TypeAlias = Literal["defined", "paused", "resumed", "deleted"]


@dataclass(frozen=True, slots=True)
class TimelineVersion:
    """A change to the definition."""

    sequence: int
    """The sequence of its event."""
    at: datetime
    by: str | None
    reason: str | None
    kind: VersionKind


@dataclass(frozen=True, slots=True)
class JobRevision(TimelineVersion):
    """A change to the definition of a job."""

    sequence: int
    """The sequence of its event."""
    changed: tuple[str, ...]
    """The fields that differ from the definition before, dotted if nested."""
    is_current: bool
    """Whether this definition is in force."""


def versions_of(past: Past, window: Window) -> list[TimelineVersion]:
    """Return the changes that the caller sees in a window, and the last before it."""
    seen = [regime for regime in past.regimes if past.is_seen(regime) and regime.since < window.until]
    first = next((n for n, regime in enumerate(seen) if regime.until is None or regime.until > window.since), 0)
    return [replace(_version(regime.fact), at=regime.since) for regime in seen[first:]]


def revisions_of(past: Past, *, before: int | None = None, limit: int | None = None) -> list[JobRevision]:
    """Return the revisions that the caller sees before a sequence, newest first."""
    current = past.regimes[-1].sequence
    revisions = list[JobRevision]()
    last: JobDefinition | None = None
    for regime in past.regimes:
        if not past.is_seen(regime):
            last = None
            continue
        version, after = _version(regime.fact), regime.definition
        is_edit = version.kind == "defined" and last is not None and after is not None
        changed = tuple(diff.field for diff in changed_fields(last, after)) if is_edit and last and after else ()
        revisions.append(JobRevision(**asdict(version), changed=changed, is_current=version.sequence == current))
        last = after
    shown = [revision for revision in reversed(revisions) if before is None or revision.sequence < before]
    return shown[:limit]


def _version(fact: Recorded[DefinitionFact]) -> TimelineVersion:
    message = fact.message
    kind = message.type  # type: ignore[attr-defined] # each kind of them has it
    by = None if message.by is None else message.by.full_name
    return TimelineVersion(fact.sequence, fact.time, by, message.reason, kind)


async def read_revisions(log: EventLog, job: str) -> list[JobRevision]:
    """Return all revisions of a job, newest first.

    Raises:
        JobNotFound: no event mentions the job.
    """
    return revisions_of(await read_past(log, job))


async def read_definition(log: EventLog, job: str, revision: int) -> JobDefinition:
    """Return the definition of a revision.

    Raises:
        NotFound: the revision defines nothing.
    """
    recorded = await log.get(subjects.ledger(job), revision)
    fact = None if recorded is None else recorded.message
    if not isinstance(fact, Defined) or fact.job != job:
        raise no_definition(job, revision)
    return fact.definition


def no_definition(job: str, revision: int) -> NotFound:
    """Return the error of a revision without a definition."""
    return NotFound(f"job {job!r} has no definition {revision}. `tocsin jobs history {job}` lists its revisions")
