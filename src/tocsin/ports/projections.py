"""Read models by key."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..domain.errors import TocsinError
from ..domain.notification import Notification
from ..subjects import Bucket
from .event_log import Written


class ChannelRefused(TocsinError):
    """A channel did not accept a notification.

    `retryable`: it may accept the same notification later, but not before `retry_after` seconds if these are given.
    """

    code = "channel-refused"

    def __init__(self, message: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class NotificationChannel(Protocol):
    """Sends notifications to one receiver.

    A notification may be sent twice, after a crash or a lost answer; both have the same id.
    """

    async def send(self, notification: Notification) -> None:
        """Send a notification, and return after the receiver accepted it.

        It ends by itself within a time that the channel knows. It follows no redirect, and its errors show no secret.

        Raises:
            ChannelRefused: the receiver did not accept it, or did not answer.
        """


class EntryWrite(msgspec.Struct, frozen=True):
    """A value to store under a key; None: remove the key.

    The revision must be `expect` (0: the key is absent).
    """

    key: str
    value: bytes | None
    expect: int
    ttl: float | None = None
    """Seconds after which the key is removed; None: it stays."""


class Projections(Protocol):
    """Small read models by key, with an optional time to live."""

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        """Return the value and its revision."""

    async def get_each(self, bucket: Bucket, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        """Return what `get` returns for each key, with few requests."""

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        """Store a value, and return its revision.

        The value lives for `ttl` seconds if given. `expect` is the revision to replace (0: the key is absent; None:
        any).

        Raises:
            SequenceConflict: the revision differs.
        """

    async def remove(self, bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        """Remove a key if its revision is `expect`; removing an absent key is no error."""

    async def write(self, bucket: Bucket, writes: Sequence[EntryWrite]) -> list[Written]:
        """Store or remove several keys with few requests, each as `put` and `remove` do.

        Return the revision of each value, none for a removed key, or the error that `put` or `remove` would raise.

        Raises:
            ValueError: two writes share a key.
        """

    async def entries(self, bucket: Bucket, keys: str = ">") -> dict[str, bytes]:
        """Return every key that a filter with wildcards covers, and its value."""


def check_keys(writes: Sequence[EntryWrite]) -> None:
    """Check that no two writes share a key.

    Raises:
        ValueError: they do, so that the result depends on their order.
    """
    if len({write.key for write in writes}) < len(writes):
        raise ValueError("two writes share a key: store one after the other")


async def write_entry(projections: Projections, bucket: Bucket, write: EntryWrite) -> Written:
    """Store or remove a key, and return the result."""
    try:
        if write.value is None:
            await projections.remove(bucket, write.key, expect=write.expect)
            return Written(())
        return Written((await projections.put(bucket, write.key, write.value, expect=write.expect, ttl=write.ttl),))
    except TocsinError as error:
        return Written((), error)
