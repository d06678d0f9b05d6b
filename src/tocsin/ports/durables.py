"""Durable consumers, and what they hand out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..subjects import Stream


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """A durable consumer, as data; `filters` are relative subjects of its one stream."""

    name: str
    stream: Stream
    filters: tuple[str, ...]
    ack_wait: float = 30.0
    """Seconds after which what nobody acknowledged is delivered again."""
    max_ack_pending: int = 20_000
    """How many messages may be out at once, over all who share the durable."""
    starts_after_cursor: bool = True
    """Made anew, it begins behind what is decided; else with all that its stream still holds."""


class Delivery(Protocol):
    """One message as a durable hands it out."""

    @property
    def subject(self) -> str:
        """Relative."""
        ...

    @property
    def body(self) -> bytes:
        """As it was published."""
        ...

    @property
    def sequence(self) -> int:
        """In its stream."""
        ...

    @property
    def time(self) -> datetime:
        """When the log stored it, UTC."""
        ...

    @property
    def message_id(self) -> str | None:
        """What its publisher called it."""
        ...

    @property
    def delivered(self) -> int:
        """1 the first time."""
        ...

    async def ack(self) -> None:
        """Dealt with."""
        ...

    async def nak(self, delay: float) -> None:
        """Hand it back, to come again after `delay` seconds."""
        ...

    async def term(self) -> None:
        """Never again."""
        ...

    async def in_progress(self) -> None:
        """Still at work: start the acknowledgement wait anew."""
        ...


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
