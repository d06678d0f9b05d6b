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

    @classmethod
    def of(cls, ledger: Ledger) -> "Registration | None":
        """What a ledger says; None: there is no such job."""
        if ledger.current is None or ledger.current.definition not in ledger.definitions:
            return None
        definition, defined_at = ledger.definitions[ledger.current.definition]
        return cls(
            definition=definition, paused=ledger.current.paused, sequence=ledger.current.fact, defined_at=defined_at
        )
