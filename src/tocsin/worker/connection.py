"""What a worker needs from the outside, and nothing about where it comes from: the seam to NATS, and to tests."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias

from ..ports import Clock, EventLog, TaskQueue
from .options import Options


@dataclass(frozen=True, slots=True)
class Connection:
    """The log, the worker's queues by name, the time."""

    log: EventLog
    queues: Mapping[str, TaskQueue]
    clock: Clock
    ack_wait: float = 30.0
    """Seconds after which the queues deliver again what nobody acknowledged or kept."""
    cancel_grace: float = 10.0
    """Seconds that a handler which heeds `context.cancelled` has to end by itself when its execution is called off."""


Connect: TypeAlias = Callable[[Options], AbstractAsyncContextManager[Connection]]
"""Opens a connection for a worker, and closes it behind it."""
