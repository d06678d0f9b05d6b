"""The time of a job: every instant of its schedule with its decision.

    TimelineReader (reads) ──definitions, decisions──▶ Ledger ──▶ marks_of   one mark for each instant, if they are few
                           ──counts, passed spans───▶ Buckets                counts by time and decision, if they are many

The decision on an instant is that of `services.explain`. Of an instant that fired, it is the status of its execution.
"""

from dataclasses import asdict

from ... import subjects
from ...domain.definition import JobDefinition
from ...domain.definition_changes import changed_fields
from ...domain.events import Defined
from ...ports import EventLog
from ..explain.reader import read_evidence
from ..operations.errors import NotFound
from .model import MAX_BUCKETS, Bucket, Decision, Mark, Revision, Span, Version, VersionKind, Window
from .reader import MAX_MARKS, Timeline, TimelineReader
from .regimes import Ledger, seen_everything, version_of

__all__ = [
    "MAX_BUCKETS",
    "MAX_MARKS",
    "Bucket",
    "Decision",
    "Mark",
    "Revision",
    "Span",
    "Timeline",
    "TimelineReader",
    "Version",
    "VersionKind",
    "Window",
    "no_definition",
    "read_definition",
    "read_revisions",
    "revisions_of",
]


async def read_revisions(log: EventLog, job: str) -> list[Revision]:
    """Return all revisions of a job, newest first.

    Raises:
        JobNotFound: no event mentions the job.
    """
    evidence = await read_evidence(log, job, with_leadership=False)
    return revisions_of(Ledger(evidence, seen_everything(evidence.definitions)))


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


def revisions_of(ledger: Ledger, *, before: int | None = None, limit: int | None = None) -> list[Revision]:
    """Return the revisions that the caller sees before a sequence, newest first."""
    current = ledger.all[-1].sequence
    revisions = list[Revision]()
    last: JobDefinition | None = None
    for regime in ledger.all:
        if not ledger.is_seen(regime):
            last = None
            continue
        version, after = version_of(regime.fact), regime.definition
        is_edit = version.kind == "defined" and last is not None and after is not None
        changed = tuple(diff.field for diff in changed_fields(last, after)) if is_edit and last and after else ()
        is_current = version.sequence == current
        revisions.append(Revision(**asdict(version), changed=changed, is_current=is_current))
        last = after
    shown = [revision for revision in reversed(revisions) if before is None or revision.sequence < before]
    return shown[:limit]
