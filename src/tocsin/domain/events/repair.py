"""Events about messages that no stage stored, and about events that no version reads."""

from datetime import datetime
from typing import Literal

from .message import Actor, Message, Sequence


class RepairFact(Message):
    """An event about a stored message by which no reader decides."""

    v: Literal[1] = 1
    """The version of the format."""
    stream: str
    """The stream that holds the message."""
    sequence: Sequence
    """The position of the message in its stream."""


class Voided(RepairFact):
    """An operator voided a foreign message, or an event that no version reads.

    The audit lists it and no longer reports it. No fold changes by a foreign message, since no reader decides by it. An unreadable event holds up what rests on it
    until it is voided; then readers that cannot read it skip it. The message stays where it is.
    """

    type: Literal["voided"] = "voided"
    """The type of the event."""
    subject: str
    """The subject of the message, without the installation's root."""
    stored_at: datetime
    """The time (UTC) at which the message was stored."""
    found: str
    """The reason why no stage can have stored the message, or why it could not be read."""
    digest: str
    """The BLAKE2b digest (256 bits) of its body, in hexadecimal digits."""
    by: Actor | None = None
    """The operator."""
    reason: str | None = None
    """The operator's reason."""
