"""The progress of this process in the durables of triggers.

Copies of the stage share a durable, which delivers in order. So what this process took shows what all copies have taken, except the few messages
that they handle at this moment.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ...ports import Clock, Delivery

PATIENCE_S: Final = 30.0
"""After this time without progress, nothing waits for a durable any more."""
EMPTY_S: Final = 5.0
"""A server that has messages delivers some within this time."""


class _Durable(msgspec.Struct):
    moved_at: float
    """When it moved on, or had no more messages (monotonic)."""
    newest: datetime | None = None
    """The time of the newest message that is handled."""
    has_more: bool = True
    """Whether messages were left when the last messages were taken."""
    asked_at: float | None = None
    """When the request began that waits for messages (monotonic); None: messages are being handled."""


class ReadProgress:
    """Notes what the readers of this process take and handle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._durables: dict[str, _Durable] = {}

    def asks(self, name: str) -> None:
        """Note that a reader of a durable waits for messages."""
        durable = self._of(name)
        if durable.asked_at is None:
            durable.asked_at = self._clock.monotonic()

    def takes(self, name: str, deliveries: Sequence[Delivery]) -> None:
        """Note that a reader took messages; none: nothing was there."""
        durable, has_more = self._of(name), bool(deliveries) and deliveries[-1].has_more
        if not (durable.has_more and has_more):
            durable.moved_at = self._clock.monotonic()
        durable.has_more = has_more
        if deliveries:
            durable.asked_at = None

    def handled(self, name: str, deliveries: Sequence[Delivery]) -> None:
        """Note that messages are handled."""
        durable = self._of(name)
        newest = max((delivery.time for delivery in deliveries), default=None)
        if newest is not None and (durable.newest is None or durable.newest < newest):
            durable.newest, durable.moved_at = newest, self._clock.monotonic()

    def fails(self, name: str) -> None:
        """Note that a reader failed, so that messages may wait."""
        durable = self._of(name)
        durable.has_more, durable.asked_at = True, None

    def forget(self, name: str) -> None:
        """Forget a durable that is not read any more."""
        self._durables.pop(name, None)

    def behind(self, name: str, until: datetime) -> timedelta:
        """Return how far a durable is behind a time (UTC, by its stream).

        Zero: all that its stream stored before was taken, or the durable does not move any more.
        """
        durable, now = self._of(name), self._clock.monotonic()
        if durable.newest is not None and durable.newest >= until:
            return timedelta(0)
        if durable.asked_at is not None and (not durable.has_more or now - durable.asked_at >= EMPTY_S):
            return timedelta(0)
        if now - durable.moved_at >= PATIENCE_S:
            return timedelta(0)
        return timedelta(seconds=1) if durable.newest is None else until - durable.newest

    def _of(self, name: str) -> _Durable:
        return self._durables.setdefault(name, _Durable(self._clock.monotonic()))
