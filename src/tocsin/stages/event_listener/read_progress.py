"""The progress of the durables of triggers, which ends of debounced windows wait for."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ...ports import Clock, Delivery, EventStreams, LogUnavailable, Progress
from .trigger_index import TriggerIndex

PATIENCE_S: Final = 30.0
"""After this time without progress, nothing waits for a durable any more."""
MAX_MARKS: Final = 256
"""Positions of a durable that are remembered until the messages before them are acknowledged."""
FORGOTTEN_S: Final = 120.0
"""After this time without a look, the time without progress begins again."""
CURRENT_S: Final = 10.0
"""How long a look waits until the triggers in force are known."""
UNKNOWN: Final = timedelta(seconds=2)
"""How far a durable counts as behind if no position of it is known."""


class Handled(NamedTuple):
    """The messages of a durable that are handled, by all copies of the stage."""

    is_all: bool
    """True: no message is left, or the durable does not move any more."""
    newest: datetime | None = None
    """A time (UTC, of the stream) before which all are handled."""

    def behind(self, until: datetime) -> timedelta:
        """Return how far the durable is behind a time; zero: all before is handled."""
        if self.is_all:
            return timedelta(0)
        return UNKNOWN if self.newest is None else max(until - self.newest, timedelta(0))


class _Mark(NamedTuple):
    sequence: int
    time: datetime


@dataclass(slots=True)
class _Durable:
    marks: deque[_Mark] = field(default_factory=lambda: deque(maxlen=MAX_MARKS))
    """Messages that this process took, in their order."""
    newest: datetime | None = None
    floor: int = -1
    moved_at: float = 0.0
    """When the floor moved, or a reader began, or a look came after a long time (monotonic)."""
    looked_at: float = float("-inf")


class ReadProgress:
    """Reads from the server what is handled."""

    def __init__(self, streams: EventStreams, index: TriggerIndex, clock: Clock) -> None:
        self._streams = streams
        self._index = index
        self._clock = clock
        self._durables: dict[str, _Durable] = {}

    def begin(self, name: str) -> None:
        """Note that a reader begins, perhaps after an outage."""
        self._durables.setdefault(name, _Durable()).moved_at = self._clock.monotonic()

    def take(self, name: str, deliveries: Sequence[Delivery]) -> None:
        """Remember the newest of messages that were taken together."""
        marks = self._durables.setdefault(name, _Durable()).marks
        newest = max((_Mark(each.sequence, each.time) for each in deliveries), default=None)
        if newest is None:
            return
        if marks and newest.sequence <= marks[-1].sequence:
            if newest.time <= marks[-1].time:  # delivered again
                return
            marks.clear()  # the stream was made again, and repeats sequences
        marks.append(newest)

    def forget(self, name: str) -> None:
        """Forget a durable that is not read any more."""
        self._durables.pop(name, None)

    async def look(self, name: str) -> Handled:
        """Return what is handled of a durable.

        Raises:
            LogUnavailable: the triggers in force are not known.
        """
        try:
            async with asyncio.timeout(CURRENT_S):
                await self._index.current()
        except TimeoutError as error:
            raise LogUnavailable("the triggers in force are not known yet") from error
        active = self._index.active.get(name)
        if active is None:  # this process may not read it
            return Handled(is_all=True)
        durable = self._durables.setdefault(name, _Durable())
        try:
            progress = await self._streams.progress(active.durable)
        except LogUnavailable:  # it may be gone
            progress = Progress(durable.floor, is_idle=False)
        now = self._clock.monotonic()
        if progress.floor != durable.floor or now - durable.looked_at >= FORGOTTEN_S:
            durable.moved_at = now
        if progress.floor < durable.floor:
            durable.marks.clear()  # the stream was made again
        durable.floor, durable.looked_at = progress.floor, now
        while durable.marks and durable.marks[0].sequence <= progress.floor:
            durable.newest = durable.marks.popleft().time
        return Handled(progress.is_idle or now - durable.moved_at >= PATIENCE_S, durable.newest)
