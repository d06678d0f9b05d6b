"""Reports of messages that no stage stored, for operators."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class ForeignReport(BaseModel):
    """A foreign message that a process met."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stream: str
    sequence: int
    subject: str
    stored_at: datetime
    """The time (UTC) at which the log stored it."""
    reason: str
    """The reason why no stage can have stored it."""
