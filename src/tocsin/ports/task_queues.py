"""The queues that executors take tasks from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .durables import Delivery


class TaskQueue(Protocol):
    """The durable that the executors of one queue share."""

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Up to `limit` tasks, whatever is there; waits up to `wait` seconds for the first."""
        ...


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How a queue stands: its tasks that nobody has taken yet, and those that somebody has and has not acknowledged."""

    name: str
    is_paused: bool
    waiting: int
    in_hand: int


class TaskQueues(Protocol):
    """The queues of an installation, by name."""

    async def open(self, queue: str) -> TaskQueue:
        """A queue to take tasks from; it is made when it is first asked for."""
        ...

    async def pause(self, queue: str) -> None:
        """Hand out nothing more; what is handed out already is not touched."""
        ...

    async def resume(self, queue: str) -> None:
        """Hand out tasks again."""
        ...

    async def standing(self, queue: str) -> QueueStatus | None:
        """How a queue stands; None: there is none of that name."""
        ...

    async def names(self) -> Sequence[str]:
        """Every queue that there is."""
        ...
