"""The append-only log, as stages see it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..domain.events import Message, Recorded, Timer
from ..subjects import Stream


class EventLog(Protocol):
    """The append-only log: guarded events, unguarded inputs, and timers that the log keeps."""

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store an event and return its sequence.

        `expect` is the last sequence in the event's scope (`subjects.scope_of`); 0: the scope is empty.

        Raises:
            SequenceConflict: the scope has a newer event.
            LogUnavailable: the log did not answer.
        """
        ...

    async def publish(self, subject: str, message: Message, *, message_id: str) -> int:
        """Store an input.

        A second input of the same `message_id` within the log's deduplication window is not stored.
        """
        ...

    async def delay(self, timer: Timer, *, until: datetime, scope: str, expect: int) -> None:
        """Let the log publish `timer` at `until` (UTC).

        `expect` is the last sequence in `scope`.

        Raises:
            SequenceConflict: the scope has a newer event.
        """
        ...

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """Return the last message of each subject in a scope, oldest first.

        This is enough to fold the scope. Only messages after the sequence `after` are returned.
        """
        ...

    async def load_each(self, *scopes: str) -> "Loaded":
        """Return what `load` returns for each of several scopes or subjects of one stream.

        It needs few requests.
        """
        ...

    async def tail(self, scope: str) -> int:
        """Return the last sequence in a scope (0: none).

        The server that guards appends answers, so the result is never a stale read from a lagging replica.
        """
        ...

    async def now(self) -> datetime:
        """Return the time (UTC) by the log's own clock."""
        ...

    async def last(self, subject: str) -> Recorded[Message] | None:
        """Return the newest message that matches a subject or filter of one stream."""
        ...

    async def get(self, stream: Stream, sequence: int) -> Recorded[Message] | None:
        """Return a message by its sequence."""
        ...

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Return up to `limit` matching messages after the sequence `after`, oldest first."""
        ...

    def follow(self, stream: Stream, *filters: str, after: int | None) -> AsyncIterator["Batch"]:
        """Yield all matching messages forever, through reconnects; without filters, the whole stream.

        It starts after the sequence `after`. For `None` it starts with the last message of each subject. Unreadable
        messages are left out.
        """
        ...

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncIterator["Headings"]:
        """Yield headings of matching messages forever, through reconnects; no bodies are transferred.

        It starts after the sequence `after`, or with messages stored at or after that instant (UTC).
        """
        ...

    async def progress(self, stream: Stream, durable: str) -> "Progress | None":
        """Return the progress of a durable; None: the durable does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """The contents of several scopes.

    `facts` are the events of each scope, in the order of the request. `upto` is the last sequence of the stream that
    the answer covers; 0: nothing was found, so the age of the answer is unknown.
    """

    facts: Sequence[Sequence[Recorded[Message]]]
    upto: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that a follower received together.

    `caught_up`: the log had no more at that moment. `upto`: the last sequence that this batch covers.
    """

    messages: Sequence[Recorded[Message]]
    caught_up: bool
    upto: int


@dataclass(frozen=True, slots=True)
class Heading:
    """A stored message without its body."""

    subject: str
    sequence: int
    time: datetime


@dataclass(frozen=True, slots=True)
class Headings:
    """Headings that a watcher received together; `caught_up` and `upto` are as in `Batch`."""

    headings: Sequence[Heading]
    caught_up: bool
    upto: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a durable in its stream."""

    floor: int
    """The sequence up to which the durable delivers nothing any more.

    Everything up to it was acknowledged or terminated, or precedes the start of the durable.
    """
    is_idle: bool
    """True: no message is waiting for delivery or acknowledgement."""

    def is_past(self, sequence: int) -> bool:
        """Return whether a message stored a while ago will not be delivered any more."""
        return self.is_idle or self.floor >= sequence
