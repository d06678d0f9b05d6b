"""Events of notifications: each is raised, prepared as a message, and delivered or given up."""

from datetime import datetime
from typing import Final, Literal

from ..notification import Kind
from .message import Actor, Sequence, VersionedMessage, constant

OUTCOME_ID: Final = "outcome"
"""The id under which the outcome of a job is kept; no notification has it."""


class NotificationFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about one notification, or about the outcome of a job."""

    job: str
    id: str
    """The id of the notification (UUIDv7)."""
    execution_id: str | None = None
    """The id of its execution; absent: it is about no execution."""


class NotificationRaised(NotificationFact, frozen=True, kw_only=True):
    """Something happened of which a channel is to be notified.

    The notifier stores this once for each event and channel.
    """

    type: Literal["raised"] = constant("raised")
    channel: str
    kind: Kind
    """What happened."""
    at: datetime
    """The time (UTC) at which it happened."""
    reason: str = ""
    """The message of the error, or the reason for the skip."""
    why: str = ""
    """Further lines for people."""
    tags: tuple[str, ...] = ()
    """The first tags of the job."""


class NotificationPrepared(NotificationFact, frozen=True, kw_only=True):
    """A message was prepared, which stands for this notification and others of its channel.

    The others are those raised up to `through` that no message stands for yet. The event is stored before the message is sent, so that
    a message that is sent again says the same.
    """

    type: Literal["prepared"] = constant("prepared")
    channel: str
    through: Sequence
    """The sequence of the newest notification in the message."""
    others: int = 0
    """The number of further notifications in the message."""
    other_jobs: tuple[str, ...] = ()
    """The names of their first jobs."""


class NotificationDelivered(NotificationFact, frozen=True, kw_only=True):
    """The receiver accepted the message."""

    type: Literal["delivered"] = constant("delivered")
    attempt: int


class NotificationAttemptFailed(NotificationFact, frozen=True, kw_only=True):
    """The receiver did not accept the message, and it will be sent again."""

    type: Literal["attempt-failed"] = constant("attempt-failed")
    attempt: int
    error: str
    """The answer of the receiver, or the reason why it gave no answer."""
    next_attempt_at: datetime
    """The time (UTC) of the next attempt."""


class NotificationAbandoned(NotificationFact, frozen=True, kw_only=True):
    """The message will not be sent again.

    The receiver refused it for good, or for too long.
    """

    type: Literal["abandoned"] = constant("abandoned")
    attempt: int
    """The number of the last attempt, counted from 1; 0: it was never sent."""
    error: str
    """The last answer of the receiver, or the reason why it gave no answer."""


class NotificationSilenced(NotificationFact, frozen=True, kw_only=True):
    """A silence covers the notification, and it is not sent."""

    type: Literal["silenced"] = constant("silenced")
    silence: str
    """The id of the silence."""
    by: Actor | None = None
    """The operator who started it."""
    reason: str = ""


class OutcomeChanged(NotificationFact, frozen=True, kw_only=True):
    """An execution of a job failed, or one completed after a failure.

    The notifier stores this for jobs with `on_recovery`, and again after a day of failures.
    """

    type: Literal["outcome-changed"] = constant("outcome-changed")
    id: str = OUTCOME_ID
    """Always `outcome`."""
    is_failing: bool
    """True: the execution failed."""
    execution_id: str
    """The id of the execution."""
    end: Sequence
    """The sequence of its end in the log."""
    ended_at: datetime
    """The time (UTC) of its end."""
