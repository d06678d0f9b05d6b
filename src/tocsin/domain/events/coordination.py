"""Events of job locks and of agents."""

from datetime import datetime
from typing import Literal

from .message import Actor, OwnMessage, Sequence, VersionedMessage, constant


class LockFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about the lock of one job, or of one shard of a job."""

    job: str
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


class Acquired(LockFact, frozen=True, kw_only=True):
    """An execution acquired the lock.

    The planner or the lock keeper stores this before the execution is admitted. The sequence of this event is the fencing token.
    """

    type: Literal["acquired"] = constant("acquired")
    ttl: float
    """Seconds that the entry in the bucket `locks` lives, and after which `tocsin doctor` looks at the holder.

    The lock itself ends with its execution, and never by time."""


class Queued(LockFact, frozen=True, kw_only=True):
    """An execution waits for the lock (ojs-cron §6.1, `enqueue`).

    The lock keeper stores this if the overlap policy lets the execution wait.
    """

    type: Literal["queued"] = constant("queued")
    yields: bool = False
    """True: the execution is a replay or part of a backfill, and lets all others go first."""


OF_THE_NAME = "all"
"""Stands for the id in the subjects of events about a name."""


class AgentFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about an agent."""

    name: str
    """The agent's name, which is configured and one token of a subject."""
    agent_id: str
    """The id of the process, or `all` for an event about the name."""


class AgentRegistered(AgentFact, frozen=True, kw_only=True):
    """An agent registered, changed what it registered with, or was heard again after a silence.

    The agent keeper stores this after a hold list.
    """

    type: Literal["registered"] = constant("registered")
    host: str = ""
    """The host, as the agent names it."""
    version: str = ""
    """The version of Tocsin that the agent runs."""
    labels: dict[str, str] = {}
    """Labels that the agent was given."""
    queues: tuple[str, ...] = ()
    """The queues that it takes tasks from."""
    functions: tuple[str, ...] = ()
    """The functions for which it has handlers, sorted."""
    max_concurrent_jobs: Sequence = 0
    """The number of tasks that it runs at the same time."""
    leader_candidate: bool = True
    """Whether it may become the executor leader."""
    shards: tuple[str, ...] = ()
    """The shards that it may own, sorted; `*` stands for every shard."""


class AgentDrainStarted(AgentFact, frozen=True, kw_only=True):
    """An operator drains an agent: it finishes its tasks and takes no more."""

    type: Literal["drain-started"] = constant("drain-started")
    by: Actor | None = None
    reason: str | None = None


class AgentFellSilent(AgentFact, frozen=True, kw_only=True):
    """An agent is lost: no hold list of it arrived for some time.

    The agent keeper stores this. The process died, or cannot reach NATS.
    """

    type: Literal["fell-silent"] = constant("fell-silent")
    silent_for: float
    """Seconds since its last hold list, or since the agent keeper began to listen."""


class AgentEnded(AgentFact, frozen=True, kw_only=True):
    """An agent stopped in order.

    The agent keeper stores this after the agent's last hold list.
    """

    type: Literal["ended"] = constant("ended")


class AgentForgotten(AgentFact, frozen=True, kw_only=True):
    """A lost or ended agent is no longer listed.

    The archiver may remove its events.
    """

    type: Literal["forgotten"] = constant("forgotten")


class QueueGrant(OwnMessage, frozen=True, kw_only=True):
    """A queue whose tasks agents of a name may get."""

    queue: str
    """The name of the queue; `*`: every queue."""
    functions: tuple[str, ...] = ("*",)
    """Functions of these tasks, sorted; `*` stands for any characters."""


class AgentGranted(AgentFact, frozen=True, kw_only=True):
    """An operator decided which tasks agents of a name may get."""

    agent_id: str = OF_THE_NAME
    """Always `all`."""
    type: Literal["granted"] = constant("granted")
    grants: tuple[QueueGrant, ...] = ()
    """All that they may get, by queue; without any, they get no tasks."""
    shards: tuple[str, ...] | None = None
    """The shards that they may own, sorted; `*`: every shard. Absent: no operator limited them."""
    by: Actor | None = None
    reason: str | None = None


class AgentSwitched(AgentFact, frozen=True, kw_only=True):
    """An operator disabled or enabled all agents of a name, now and after their restarts.

    Of a worker over HTTP, which does not register, the name is its id: the digest of its identity and its own name.
    """

    agent_id: str = OF_THE_NAME
    """Always `all`."""
    type: Literal["switched"] = constant("switched")
    enabled: bool
    """False: agents of this name take no tasks."""
    draining: bool = False
    """True: the worker over HTTP finishes its tasks and ends."""
    by: Actor | None = None
    reason: str | None = None
