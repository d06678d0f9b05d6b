"""What is shown of a job: its definition and whether it is paused (KV `definitions`, `jobs list`, ojs-cron §8)."""

from datetime import datetime

from .definition import JobDefinition
from .events import Message
from .ledger import Ledger


class Registration(Message):
    """A job as it is registered now; `sequence` is that of its last definition fact."""

    definition: JobDefinition
    paused: bool = False
    sequence: int
    defined_at: datetime
    created_at: datetime | None = None
    created_by: str | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> "Registration | None":
        """What a ledger says; None: there is no such job."""
        current = ledger.current
        known = ledger.definitions.get(current.definition) if current else None
        if current is None or known is None or known.definition is None:
            return None
        return cls(
            definition=known.definition,
            paused=current.paused,
            sequence=current.fact,
            defined_at=known.since,
            created_at=ledger.created_at,
            created_by=ledger.created_by,
        )
