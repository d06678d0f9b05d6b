"""Events of queues: what operators decided about them."""

from typing import Literal

from .message import Actor, Message, Sequence


class QueueFact(Message):
    """An event about a queue."""

    v: Literal[1] = 1
    """The version of the format."""
    queue: str
    """The name of the queue."""
    by: Actor | None = None
    """The operator."""
    reason: str | None = None
    """The operator's reason."""


class QueuePaused(QueueFact):
    """An operator paused a queue: its tasks wait, and running tasks finish."""

    type: Literal["paused"] = "paused"
    """The type of the event."""


class QueueResumed(QueueFact):
    """An operator resumed a queue: its tasks go to workers again."""

    type: Literal["resumed"] = "resumed"
    """The type of the event."""


class QueuePurged(QueueFact):
    """An operator purged a queue: the executions of the tasks that waited are cancelled.

    The matcher cancels them one by one, and the MQ bridge those of its queues. Tasks that were dispatched later are not
    touched, and tasks that a worker has run on.
    """

    type: Literal["purged"] = "purged"
    """The type of the event."""
    upto: Sequence
    """The sequence of the log up to which tasks are purged: its end when the operator decided."""
    waiting: int | None = None
    """The number of tasks that waited a moment before; None: it was not known."""
