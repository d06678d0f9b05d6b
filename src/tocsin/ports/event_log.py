"""The append-only log, as those who decide see it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..domain.events import Message, Recorded, Timer
from ..subjects import Stream


class EventLog(Protocol):
    """The append-only log: guarded facts, unguarded inputs, delays that the log itself keeps."""

    async def append(self, fact: Message, *, expect: int) -> int:
        """Store a fact if the last sequence in its scope (`subjects.scope_of`) is `expect` (0: none); its sequence.

        Raises:
            SequenceConflict: the scope has moved.
            LogUnavailable: no answer.
        """
        ...

    async def publish(self, subject: str, message: Message, *, message_id: str) -> int:
        """Store an input; a second one of the same `message_id` within the log's window is not stored again."""
        ...

    async def delay(self, timer: Timer, *, until: datetime, scope: str, expect: int) -> None:
        """Have the log itself publish `timer` at `until` (UTC), if the last sequence in `scope` is `expect`.

        Raises:
            SequenceConflict: the scope has moved.
        """
        ...

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """The last message of each subject in a scope, oldest first: enough to fold it. Only those behind `after`."""
        ...

    async def load_each(self, *scopes: str) -> "Loaded":
        """What `load` says of each of some scopes, or single subjects, of one stream, at the price of few."""
        ...

    async def tail(self, scope: str) -> int:
        """The last sequence in a scope (0: none), as whoever guards appends knows it: no replica that lags answers."""
        ...

    async def now(self) -> datetime:
        """What time it is by the log's own clock (UTC)."""
        ...

    async def last(self, subject: str) -> Recorded[Message] | None:
        """The newest message that matches a subject or filter of one stream."""
        ...

    async def get(self, stream: Stream, sequence: int) -> Recorded[Message] | None:
        """One message by its sequence."""
        ...

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        """Up to `limit` messages that match a subject or filter, those behind the sequence `after`, oldest first."""
        ...

    def follow(self, stream: Stream, *filters: str, after: int | None) -> AsyncIterator["Batch"]:
        """Everything that matches, for ever, through reconnects; without filters the whole stream.

        From behind the sequence `after`, or for `None` the last message of each subject and then what comes. Unreadable
        messages are left out.
        """
        ...

    def watch(self, stream: Stream, *filters: str, after: int | datetime) -> AsyncIterator["Headings"]:
        """That something was stored and when, for ever, through reconnects; no bodies travel, and none is read.

        From behind the sequence `after`, or from what was stored at that instant (UTC) or later.
        """
        ...

    async def progress(self, stream: Stream, durable: str) -> "Progress | None":
        """How far a durable of a stream has got; None: there is no such durable."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """What several scopes held.

    `facts`: of each scope, in the order in which they were asked for. `upto`: the last sequence of the stream that this
    accounts for; 0 where nothing was found, since then nothing tells how old the answer is.
    """

    facts: Sequence[Sequence[Recorded[Message]]]
    upto: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that a follower got at once.

    `caught_up`: the log had no more at that moment. `upto`: the last sequence that this batch accounts for.
    """

    messages: Sequence[Recorded[Message]]
    caught_up: bool
    upto: int


@dataclass(frozen=True, slots=True)
class Heading:
    """That a message was stored: all but what it says."""

    subject: str
    sequence: int
    time: datetime


@dataclass(frozen=True, slots=True)
class Headings:
    """Headings that a watcher got at once; `caught_up` and `upto` as a `Batch` has them."""

    headings: Sequence[Heading]
    caught_up: bool
    upto: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a durable has got in its stream."""

    floor: int
    """Up to this sequence it will deliver nothing any more: all was acknowledged or ended, or lies before its start."""
    is_idle: bool
    """Nothing is to be delivered, and nothing that was waits for its acknowledgement."""

    def is_past(self, sequence: int) -> bool:
        """Whether a message that was stored a while ago will not be delivered any more."""
        return self.is_idle or self.floor >= sequence
