"""Events of other programs and ends of executions, as messages of Tocsin refer to them."""

from datetime import datetime
from typing import Final, Literal, TypeAlias

from .message import OwnMessage, Sequence, VersionedMessage, constant

HOPS_HEADER: Final = "ce-tocsinhops"
"""The header by which a job's own publication says how many executions events started one after the other, up to the publisher.

It is an extension of CloudEvents. A sender can leave it out: it ends accidental circles.
"""

IgnoredReason: TypeAlias = Literal["condition_false", "duplicate", "debounced", "trigger_removed", "too_many_keys"]
"""Why an event started nothing, or nothing yet, although its trigger heard it."""


class EventReference(OwnMessage, frozen=True, kw_only=True):
    """The place of an event in its stream.

    The event is a message of another program, or the end of an execution in the log.
    """

    stream: str
    """The name of the stream."""
    sequence: Sequence
    """The position of the message in the stream."""
    subject: str
    """The subject of the event; for the end of an execution the job and the end, such as `extract.completed`."""
    time: datetime
    """The time (UTC) at which the stream stored it."""
    hops: Sequence = 0
    """The executions that events started one after the other, and that led to this event, as far as it is known."""


class EventIgnored(VersionedMessage, frozen=True, kw_only=True):
    """An event started nothing.

    It decides nothing: the stream keeps the newest 200 of each trigger, and no stage reads it.
    """

    type: Literal["event-ignored"] = constant("event-ignored")
    """The type of the message."""
    job: str
    trigger_id: str
    """The digest of the job and the source of its trigger, as in the name of the durable."""
    event: EventReference
    """The event."""
    reason: IgnoredReason
    """Why it started nothing."""
    key: str | None = None
    """The key of the event; absent: it has none, or it was not computed."""
    execution_id: str | None = None
    """The execution that another event with this key started; absent: none."""
