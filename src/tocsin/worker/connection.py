"""The options of a worker, and the connection that its host opens for them."""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from ..domain import agent
from ..ports import AgentChannel, Clock, Publisher

_worker_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one worker; times are in seconds.

    Raises:
        ValueError: an option is out of its range.
    """

    queues: tuple[str, ...]
    concurrency: int
    """The number of tasks that run at the same time, over all queues."""
    shutdown_timeout: float
    """How long handlers may continue after the worker is stopped."""
    name: str
    """Unique among the workers that run at the same time, because claims record it."""
    nats_url: str | None
    """None: from the settings."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Shown with the agent."""
    secrets: frozenset[str] = frozenset()
    """The environment variables and files that inputs may refer to."""
    shards: tuple[str, ...] = ()
    """The shards that the worker may own; `*` stands for every shard."""

    def __post_init__(self) -> None:
        if not self.queues or len(set(self.queues)) != len(self.queues) or not all(self.queues):
            raise ValueError(f"queues: name at least one queue, each once, not {self.queues!r}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency: at least 1, not {self.concurrency}")
        if self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout: at least 0 seconds, not {self.shutdown_timeout:g}")
        if not agent.is_agent_name(self.name):
            raise ValueError(f"name: 1 to {agent.MAX_NAME} letters, digits, hyphens and underscores, not {self.name!r}")
        if len(self.labels) > agent.MAX_LABELS:
            raise ValueError(f"labels: at most {agent.MAX_LABELS}, not {len(self.labels)}")
        agent.checked_shards(self.shards)


def refuse_text(option: str, given: object, shape: str) -> None:
    """Refuse an option that is one string.

    Raises:
        TypeError: the option is one string.
    """
    if isinstance(given, str):
        raise TypeError(f"{option}: pass a {shape}, such as ({given!r},), not one string")


def unique_name() -> str:
    """Return a unique name, made from the host, the process id and a number."""
    tail = f"-{os.getpid()}-{next(_worker_numbers)}"
    return agent.safe_name(socket.gethostname())[: agent.MAX_NAME - len(tail)] + tail


@dataclass(frozen=True, slots=True)
class Connection:
    """The publisher of reports and output, the channel that brings tasks, and the clock."""

    log: Publisher
    agents: AgentChannel
    clock: Clock
    cancel_grace: float = 10.0
    """Seconds that a handler which watches `context.cancelled` has to end after its execution was cancelled."""
    concurrency: int | None = None
    """Replaces the number of tasks in the worker's code."""
    version: str = ""
    """The version of Tocsin, shown with the agent."""
    leader_candidate: bool = True
    """Whether the worker may become the executor leader."""
    shards: tuple[str, ...] | None = None
    """Replaces the shards in the worker's code."""
    noise: Callable[[], str] = field(default=lambda: os.urandom(16).hex())
    """Makes the id of the process unique."""


Connect: TypeAlias = Callable[[Options], AbstractAsyncContextManager[Connection]]
"""Opens a connection for a worker, and closes it at the end."""
