"""Events of the shard map: the parts of the work of an installation."""

from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from .message import Actor, CheckedMessage, Sequence, VersionedMessage, constant

OwnershipReason: TypeAlias = Literal[
    "vacant", "silent", "ended", "draining", "disabled", "withdrawn", "unable", "balanced"
]


class QueueFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about a queue."""

    queue: str
    """The name of the queue."""
    by: Actor | None = None
    reason: str | None = None


class QueuePaused(QueueFact, frozen=True, kw_only=True):
    """An operator paused a queue: its tasks wait, and running tasks finish."""

    type: Literal["paused"] = constant("paused")


class QueueResumed(QueueFact, frozen=True, kw_only=True):
    """An operator resumed a queue: its tasks go to workers again."""

    type: Literal["resumed"] = constant("resumed")


class QueuePurged(QueueFact, frozen=True, kw_only=True):
    """An operator purged a queue: the executions of the tasks that waited are cancelled.

    The matcher cancels them one by one, and the MQ bridge those of its queues. Tasks that were dispatched later are not
    touched, and tasks that a worker has run on.
    """

    type: Literal["purged"] = constant("purged")
    upto: Sequence
    """The sequence of the log up to which tasks are purged: its end when the operator decided."""
    waiting: int | None = None
    """The number of tasks that waited a moment before; None: it was not known."""


class RepairFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about a stored message by which no reader decides."""

    stream: str
    """The stream that holds the message."""
    sequence: Sequence
    """The position of the message in its stream."""


class Voided(RepairFact, frozen=True, kw_only=True):
    """An operator voided a foreign message, or an event that no version reads.

    The audit lists it and no longer reports it. No fold changes by a foreign message, since no reader decides by it. An unreadable event holds up what rests on it
    until it is voided; then readers that cannot read it skip it. The message stays where it is.
    """

    type: Literal["voided"] = constant("voided")
    subject: str
    """The subject of the message, without the installation's root."""
    stored_at: datetime
    """The time (UTC) at which the message was stored."""
    found: str
    """The reason why no stage can have stored the message, or why it could not be read."""
    digest: str
    """The BLAKE2b digest (256 bits) of its body, in hexadecimal digits."""
    by: Actor | None = None
    reason: str | None = None


class OwnershipFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about a resource."""

    resource: str
    """The resource.

    `executor` is the executor lease, whose owner gets the tasks of `LEADER_ONLY` jobs. `shard-<id>` is a shard, whose owner gets
    the tasks of executions on it.
    """


class OwnershipAssigned(OwnershipFact, frozen=True, kw_only=True):
    """An agent owns a resource from now on.

    The matcher stores this in the agent's name when a task needs an owner and the resource has no owner that may stay. A shard
    gets its first owner when an agent declares it. The sequence of the event is the epoch of the owner.
    """

    type: Literal["assigned"] = constant("assigned")
    name: str
    """The name of the agent."""
    agent_id: str
    """The id of its process."""
    reason: OwnershipReason
    """The reason for a new owner.

    `vacant`: there was none. `silent`: no hold list of the owner arrived for 30 seconds. `ended`, `draining`, `disabled`: it
    stopped, or takes no more tasks. `withdrawn`: it does not stand any more, or does not declare the shard. Only of shards:
    `unable`: it lacks what an open task needs, and the new owner has it. `balanced`: it owned at least two shards more.
    """


class Silence(CheckedMessage):
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


class SilencesDefined(VersionedMessage, frozen=True, kw_only=True):
    """An operator started or ended a silence.

    The event has all silences that are in force then.
    """

    type: Literal["silences-defined"] = constant("silences-defined")
    previous: Sequence = 0
    """The sequence of the preceding event; 0: none."""
    silences: tuple[Silence, ...]
    """The silences in force, the oldest first."""
    by: Actor | None = None
    reason: str | None = None


class PolicyDefined(VersionedMessage, frozen=True, kw_only=True):
    """An administrator defined the scheduler policy.

    The event is the whole policy, and its sequence is the version. A field that is absent sets nothing: what would apply without
    a policy applies.
    """

    type: Literal["policy-defined"] = constant("policy-defined")
    previous: Sequence = 0
    """The sequence of the preceding policy; 0: none."""
    max_concurrent_jobs: int | None = None
    """The number of tasks that the matcher gives one agent at most."""
    job_timeout: float | None = None
    """The timeout in seconds of jobs that are registered without a timeout, and the longest that a job may have."""
    job_history_retention_days: int | None = None
    """The days for which the history keeps finished executions and resolved dead letters."""
    enable_job_history: bool | None = None
    """Whether the history records executions."""
    by: Actor | None = None
    """The administrator."""
    reason: str | None = None
    """The administrator's reason."""


class Namespace(CheckedMessage):
    """A declared namespace."""

    name: str
    """The name: the first part of the names of its jobs and queues."""
    description: str = ""
    """Its purpose, for people."""
    max_jobs: int | None = None
    """The jobs that may be registered in it; None: any number."""
    max_running: int | None = None
    """The tasks of its queues that workers may have at a time; None: any number."""
    executions_per_day: int | None = None
    """The executions of its jobs that may begin in a day (UTC); None: any number."""
    bytes_per_day: int | None = None
    """The bytes of events that its executions may store in a day (UTC); None: any number."""


class NamespacesDefined(VersionedMessage, frozen=True, kw_only=True):
    """An administrator declared the namespaces of the installation.

    The event has all of them, and its sequence is the version.
    """

    type: Literal["namespaces-defined"] = constant("namespaces-defined")
    previous: Sequence = 0
    """The sequence of the preceding declaration; 0: none."""
    namespaces: tuple[Namespace, ...] = ()
    """All namespaces, sorted by name."""
    by: Actor | None = None
    """The administrator."""
    reason: str | None = None
    """The administrator's reason."""


class ShardState(StrEnum):
    """The state of a shard."""

    ACTIVE = "ACTIVE"
    """Occurrences run on it."""
    DRAINING = "DRAINING"
    """Executions on it finish, and further occurrences do not run on it."""
    DISABLED = "DISABLED"
    """Occurrences do not run on it."""


class Shard(CheckedMessage):
    """A named part of the work."""

    shard_id: str
    """The id, which names of executions and locks contain; one token of a subject."""
    name: str = ""
    """A name for people."""
    state: ShardState = ShardState.ACTIVE
    """Whether occurrences run on it."""
    labels: dict[str, str] = {}
    """Labels for people and programs."""


class ShardsDefined(VersionedMessage, frozen=True, kw_only=True):
    """An operator defined the shards of the installation.

    The event is the whole map, and its sequence is the version that `due` names.
    """

    type: Literal["shards-defined"] = constant("shards-defined")
    previous: Sequence = 0
    """The sequence of the preceding map; 0: none."""
    shards: tuple[Shard, ...] = ()
    """All shards, sorted by id."""
    by: Actor | None = None
    reason: str | None = None
