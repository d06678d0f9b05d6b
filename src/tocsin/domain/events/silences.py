"""Events of silences: times in which notifications are not sent."""

from datetime import datetime
from typing import Literal

from .message import Actor, Message, Sequence


class Silence(Message):
    """A time in which notifications of some jobs are recorded and not sent."""

    id: str
    """The id of the silence (UUIDv7)."""
    job: str | None = None
    """The job; absent: any."""
    tag: str | None = None
    """A tag that the job has; absent: any."""
    since: datetime
    """The time (UTC) at which it began."""
    until: datetime
    """The time (UTC) at which it ends."""
    by: Actor | None = None
    """The operator who started it."""
    reason: str
    """The operator's reason."""


class SilencesDefined(Message):
    """An operator started or ended a silence.

    The event has all silences that are in force then.
    """

    v: Literal[1] = 1
    """The version of the format."""
    type: Literal["silences-defined"] = "silences-defined"
    """The type of the event."""
    previous: Sequence = 0
    """The sequence of the preceding event; 0: none."""
    silences: tuple[Silence, ...]
    """The silences in force, the oldest first."""
    by: Actor | None = None
    """The operator."""
    reason: str | None = None
    """The operator's reason."""
