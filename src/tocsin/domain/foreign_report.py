"""Reports for operators: messages that no stage stored, and unreadable events."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from .text import printable


class ForeignReport(BaseModel):
    """A foreign message or an unreadable event that a process met."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stream: str
    sequence: int
    subject: str
    stored_at: datetime
    """The time (UTC) at which the log stored it."""
    reason: str
    """The reason why no stage can have stored it, or why the process cannot read it."""
    is_unreadable: bool = False
    """Whether a stage stored it, and the process cannot read it."""
    does_decode: bool = False
    """Whether it can be read, and the state of its scope does not accept it."""

    @property
    def place(self) -> str:
        """The subject, the stream and the sequence of the message, to be shown."""
        return f"{printable(self.subject)} ({self.stream} {self.sequence})"
