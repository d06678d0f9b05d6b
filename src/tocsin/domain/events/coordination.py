"""Events of job locks and of leader leases."""

from datetime import datetime
from typing import Literal

from .message import Message

# --- locks -----------------------------------------------------------------------------------------------------------


class LockFact(Message):
    """An event about the lock of one job, or of one shard of a job."""

    v: Literal[1] = 1
    """The version of the format."""
    job: str
    """The name of the job."""
    shard: str | None = None
    """The shard, if the job's lock is split."""
    execution_id: str
    """The execution that acquired the lock or waits for it."""
    scheduled_time: datetime
    """The instant (UTC) for which the execution was planned."""
    oldest: int = 0
    """The sequence of the oldest earlier `queued` event whose execution still waits (0: none).

    It is enough to read the lock's events from there on.
    """


class Acquired(LockFact):
    """An execution acquired the lock.

    The lock keeper stores this before the execution is admitted. The sequence of this event is the fencing token.
    """

    type: Literal["acquired"] = "acquired"
    """The type of the event."""
    ttl: float
    """Seconds for which the execution may hold the lock."""


class Queued(LockFact):
    """An execution waits for the lock (ojs-cron §6.1, `enqueue`).

    The lock keeper stores this if the overlap policy lets the execution wait.
    """

    type: Literal["queued"] = "queued"
    """The type of the event."""
    yields: bool = False
    """True: the execution is a replay or part of a backfill, and lets all others go first."""


# --- leader leases ---------------------------------------------------------------------------------------------------


class LeadershipFact(Message):
    """An event about a leader lease.

    It explains gaps to operators; no decision depends on it.
    """

    v: Literal[1] = 1
    """The version of the format."""
    lease: str
    """The name of the lease, such as `ticker`."""
    holder: str
    """The process that holds or held the lease."""
    at: datetime
    """The time of the change (UTC), by the clock of the holder."""


class LeadershipGained(LeadershipFact):
    """A process acquired a leader lease.

    The process itself stores this when its leadership begins.
    """

    type: Literal["gained"] = "gained"
    """The type of the event."""
    last_sign: datetime | None = None
    """The last time (UTC) at which this process saw another leader."""


class LeadershipReleased(LeadershipFact):
    """A process released a leader lease.

    The process itself stores this when it shuts down.
    """

    type: Literal["released"] = "released"
    """The type of the event."""


class LeadershipLost(LeadershipFact):
    """A process lost a leader lease.

    The process itself stores this when it finds out.
    """

    type: Literal["lost"] = "lost"
    """The type of the event."""
    last_sign: datetime
    """The last time (UTC) at which the process knew that it was the leader."""
