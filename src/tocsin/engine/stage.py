"""What a stage is: a name, the durables that it reads, the loops that it runs.

A stage is a value, so that the same code runs over FastStream and NATS (`adapters.nats.consumers.stage_router`), over the in-memory
log in tests, and under a simulator that owns every delivery.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from ..domain.errors import TocsinError
from ..domain.events import Message, Recorded
from ..subjects import Bucket, Stream, entity_of

Handler = Callable[[Recorded[Message]], Awaitable[None]]
Preparation = Callable[[Sequence[Recorded[Message]]], Awaitable[None]]

ACK_WAIT: Final = 30.0
"""Seconds after which a message that nobody acknowledged is delivered again."""


class NotReady(TocsinError):
    """What a message is about is not there, and may still come: hand it back for a moment."""

    code = "not-ready"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A durable and what to do with its messages. Those with the same `ordering_key(subject)` are handled in order.

    `prepare` reads at once what the handler would read for each message that came at the same time. It decides nothing, and
    when it fails each handler reads for itself.
    """

    durable: str
    stream: Stream
    filters: tuple[str, ...]
    handle: Handler
    ordering_key: Callable[[str], str] | None = entity_of
    ack_wait: float = ACK_WAIT
    prepare: Preparation | None = None
    low_priority: bool = False
    """Whether nobody's beginning depends on it: while there are many beginnings, it is taken up a moment later."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a stage touches beside its durables. The rules of its NATS user are made of this: the rest is refused it."""

    appends: tuple[type[Message], ...] = ()
    """What it stores: facts, inputs, announcements, and timers that the log is to publish."""
    reads: tuple[Stream, ...] = ()
    """Where it looks up single messages, or whole scopes."""
    follows: tuple[Stream, ...] = ()
    """Where it reads on for ever, by itself."""
    asks_about: tuple[Stream, ...] = ()
    """Where it asks how far the durables of others have got."""
    looks_up: tuple[Bucket, ...] = ()
    writes: tuple[tuple[Bucket, str], ...] = ()
    """Buckets that it looks up and writes, and the keys of each (a key or a filter)."""
    reads_archive: bool = False
    keeps_archive: bool = False
    """It puts what is over into the archive, and takes it out of the streams."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One independent part of the scheduler. `loops` run for as long as it does, and end when cancelled."""

    name: str
    subscriptions: tuple[Subscription, ...] = ()
    loops: tuple[Callable[[], Coroutine[None, None, None]], ...] = ()
    access: Access = Access()
