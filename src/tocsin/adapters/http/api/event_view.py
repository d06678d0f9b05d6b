"""Facts as clients are shown them: what the log stored, but for what only executors may know."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from ....domain.events import Message, Recorded
from ....domain.redaction import masked


class StoredFact(BaseModel):
    """A fact with everything that the log knows about it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    time: datetime
    """When the log stored it."""
    sequence: int
    """In its stream."""
    subject: str
    fact: dict[str, Any]
    """As `schemas/events` describes it, `type` by `type`."""

    @classmethod
    def of(cls, recorded: Recorded[Message]) -> "StoredFact":
        """A fact as it may be shown."""
        fact = masked(recorded.message).model_dump(mode="json", exclude_none=True)
        return cls(time=recorded.time, sequence=recorded.sequence, subject=recorded.subject, fact=fact)
