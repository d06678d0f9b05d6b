"""The lock of a job."""

from datetime import datetime
from typing import Literal

from .message import Message


class LockFact(Message):
    """A fact about the lock of one job (and shard)."""

    v: Literal[1] = 1
    job: str
    shard: str | None = None
    execution_id: str


class Waiter(Message):
    """An execution that waits for the lock. `yields`: it makes up for the past, and lets what is asked for now go first."""

    execution_id: str
    scheduled_time: datetime
    yields: bool = False


class Acquired(LockFact):
    """The execution holds the lock; the sequence of this fact is its fencing token. `waiting` is who still waits."""

    type: Literal["acquired"] = "acquired"
    scheduled_time: datetime
    ttl: float
    waiting: tuple[Waiter, ...] = ()


class Queued(LockFact):
    """The execution waits for the lock, as `waiting` says in which order (ojs-cron §6.1, `enqueue`)."""

    type: Literal["queued"] = "queued"
    waiting: tuple[Waiter, ...]
