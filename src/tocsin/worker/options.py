"""What a worker was asked to be, checked once."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

_workers_of_this_process = count(1)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one worker; times in seconds.

    Raises:
        ValueError: an option is out of its range.
    """

    queues: tuple[str, ...]
    concurrency: int
    """Tasks that run at the same time, over all queues."""
    shutdown_timeout: float
    """How long handlers may go on once the worker is asked to stop."""
    name: str
    nats_url: str | None
    """None: from the settings."""

    def __post_init__(self) -> None:
        """Check."""
        if not self.queues or len(set(self.queues)) != len(self.queues) or not all(self.queues):
            raise ValueError(f"queues: name at least one, each once, not {self.queues!r}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency: at least 1, not {self.concurrency}")
        if self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout: at least 0 seconds, not {self.shutdown_timeout:g}")


def read(
    queues: Sequence[str], *, concurrency: int, shutdown_timeout: float, name: str | None, nats_url: str | None
) -> Options:
    """The options as a user gives them.

    Raises:
        ValueError: an option is out of its range.
        TypeError: the queues are one string.
    """
    if isinstance(queues, str):
        raise TypeError(f"queues: a sequence of names, such as ({queues!r},), not one string")
    return Options(tuple(queues), concurrency, shutdown_timeout, name or _own_name(), nats_url)


def _own_name() -> str:
    """Unique among all workers, since claims name it."""
    return f"{socket.gethostname()}-{os.getpid()}-{next(_workers_of_this_process)}"
