"""The revisions of a job: the changes to its definition."""

from dataclasses import dataclass
from datetime import datetime

from ...domain.definition import JobDefinition
from ...domain.definition_changes import changed_fields
from .model import VersionKind
from .regimes import Ledger, version_of


@dataclass(frozen=True, slots=True)
class Revision:
    """An event on the definition of a job.

    `changed`: the fields that differ from the definition before. `is_current`: it is the definition in force.
    """

    sequence: int
    at: datetime
    by: str | None
    reason: str | None
    kind: VersionKind
    changed: tuple[str, ...]
    is_current: bool


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
        revisions.append(
            Revision(
                version.sequence,
                version.at,
                version.by,
                version.reason,
                version.kind,
                changed,
                is_current=version.sequence == current,
            )
        )
        last = after
    shown = [revision for revision in reversed(revisions) if before is None or revision.sequence < before]
    return shown[:limit]
