"""The log of commits for its writers and readers, and requests for a turn."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from typing import Protocol, TypeAlias

import msgspec

from ..domain.errors import TocsinError


class CommitRefused(TocsinError):
    """The guard of a commit failed: something else was stored, or the answering server lags.

    `last` is the sequence that the server named as the newest; None: it named none, because the other message is on its way.
    """

    code = "commit-refused"

    def __init__(self, partition: int, last: int | None) -> None:
        super().__init__(f"partition {partition}: another message was stored first (last sequence: {last})")
        self.last = last


class StoredBody(msgspec.Struct, frozen=True):
    """A message of a partition as stored; `time` (UTC) is the server's."""

    sequence: int
    time: datetime
    body: bytes


class Bodies(msgspec.Struct, frozen=True):
    """Messages that a follower received together.

    `caught_up`: the leader of the stream had no more at that moment. `upto`: the last sequence that they cover.
    """

    bodies: Sequence[StoredBody]
    caught_up: bool
    upto: int


class CommitLog(Protocol):
    """The messages of the subjects of all partitions; each subject has its own guard.

    It stores bodies and does not read them: `domain.commit` finds the genuine commits among them. Each request raises
    `LogUnavailable` if there was no answer, or the server cannot store now.
    """

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        """Store a commit and return its sequence.

        `expect` is the last sequence of the partition; 0: it is empty. The body is sent once. Without an answer the commit may be stored, or be stored later.

        Raises:
            CommitRefused: the partition has another last sequence.
            MessageTooLarge: the server accepts no message of this size.
        """

    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        """Return the first message after a sequence; None: the leader of the stream has none."""

    def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        """Yield all messages after a sequence in order, through reconnects, until closed."""

    async def now(self) -> datetime:
        """Return the server's time (UTC)."""

    async def purge(self, partition: int, *, upto: int) -> None:
        """Remove messages up to a sequence, but never the newest.

        The sequence of the newest guards the next commit.
        """


async def stored_bodies(log: CommitLog, partition: int, *, after: int = 0) -> AsyncGenerator[StoredBody, None]:
    """Yield the messages after a sequence that are stored now, genuine or not."""
    async with aclosing(log.follow(partition, after=after)) as batches:
        async for batch in batches:
            for body in batch.bodies:
                yield body
            if batch.caught_up:
                return


ReceiveTurn: TypeAlias = Callable[[str], None]
"""Takes the name of the process that requests its turn; it returns at once."""


class TurnChannel(Protocol):
    """Requests for a turn, which no stream stores.

    Any request may be lost. `ask` raises `LogUnavailable` without a connection.
    """

    async def ask(self, name: str) -> None:
        """Ask the other processes to hold back."""

    def asked(self, receive: ReceiveTurn) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on the request of each process, also of this process."""
