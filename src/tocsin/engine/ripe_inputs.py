"""The waiting inputs that a process can decide again.

The states for which they wait have changed, or their time is over.
"""

import heapq
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ..domain.events import Recorded
from ..domain.log_events import Name, Waits
from .causes import MIN_STALE, STALE, MessageCause
from .fold import Fold
from .report_lists import decode
from .stage import BoundStage, BoundSubscription
from .waiting import TAKEN, taken_scope

PATIENCE: Final = timedelta(seconds=30)
"""How long an input waits."""


class RipeInputs:
    """An input that waits for its turn to be decided again."""

    def __init__(self, stages: Sequence[BoundStage], fold: Fold) -> None:
        self._fold = fold
        self._subscriptions: dict[tuple[str, str], tuple[BoundStage, BoundSubscription]] = {
            (stage.name, subscription.durable): (stage, subscription)
            for stage in stages
            for subscription in stage.subscriptions
        }
        self._changed: dict[Name, None] = {}
        """Inputs with changed states."""
        self._times: list[tuple[datetime, int, Name]] = []
        """A heap of the times of all inputs. An input may wait no longer."""
        self._in_turns: set[Name] = set()

    @property
    def next_at(self) -> datetime | None:
        """A time (UTC) no later than the end of the next input; None: none waits."""
        return self._times[0][0] if self._times else None

    def note(self, scope: str) -> None:
        """Note that a scope has a new event."""
        self._changed.update(dict.fromkeys(self._fold.waiting.on(scope)))

    def note_taken(self, stage: str, source: str) -> None:
        """Note that a stage has taken more of a source."""
        if self._fold.waiting:
            self.note(taken_scope(stage, source))

    def note_wait(self, waits: Waits, number: int) -> None:
        """Note that an input waits, by the number of its event."""
        if (waits.stage, waits.durable) in self._subscriptions:
            heapq.heappush(self._times, (waits.until, number, waits.name))
        if len(self._times) > MIN_STALE + STALE * len(self._fold.waiting):  # a standby takes none of them
            self._times = [entry for entry in self._times if self._fold.waiting.get(entry[2]) is not None]
            heapq.heapify(self._times)

    def look(self) -> None:
        """Look at all inputs again: this process decides for more stages."""
        numbers = self._fold.numbers
        self._times.clear()
        for waits, number in self._fold.waiting:
            self.note_wait(waits, number)
            if any(scope.startswith(TAKEN) or numbers.get(scope, 0) > number for scope in waits.on):
                self._changed[waits.name] = None

    def take(self, now: datetime, led: frozenset[str]) -> list[MessageCause]:
        """Return the inputs that can be decided for some stages, and were not returned before."""
        while self._times and self._times[0][0] <= now:
            self._changed[heapq.heappop(self._times)[2]] = None
        calls = list[MessageCause]()
        for name in self._changed:
            waits = self._fold.waiting.get(name)
            if waits is None or waits.stage not in led or name in self._in_turns:
                continue
            if (subscribed := self._subscriptions.get((waits.stage, waits.durable))) is not None:
                calls.append(cause_of(*subscribed, waits))
                self._in_turns.add(name)
        self._changed.clear()
        return calls

    def is_open(self, waits: Waits) -> bool:
        """Return whether an input that has its turn still waits."""
        self._in_turns.discard(waits.name)
        return self._fold.waiting.get(waits.name) is not None

    def forget_turns(self, inputs: Iterable[Waits]) -> None:
        """Note that inputs do not wait for their turns any more.

        Another process decides on them.
        """
        self._in_turns.difference_update(waits.name for waits in inputs)

    def put_back(self, waits: Waits) -> None:
        """Note that an input waits for its turn again."""
        self._in_turns.add(waits.name)


def cause_of(stage: BoundStage, subscription: BoundSubscription, waits: Waits) -> MessageCause:
    """Return an input that waited, for its new decision."""
    recorded = Recorded(
        decode(waits.subject, bytes(waits.body)), waits.subject, waits.place, waits.time, waits.message_id
    )
    return MessageCause(stage, subscription, waits.source, waits.place, recorded, waits)


def wait_for(cause: MessageCause, scopes: set[str], now: datetime, patience: timedelta = PATIENCE) -> Waits:
    """Return the event that an input waits for events of scopes.

    An input that waited before waits no longer than the first time.
    """
    on = tuple(sorted(scopes))
    if cause.waits is not None:
        return msgspec.structs.replace(cause.waits, on=on)
    recorded, body = cause.recorded, msgspec.Raw(cause.recorded.message.encode())
    name = cause.stage.name, cause.subscription.durable, cause.source, cause.place, recorded.subject
    return Waits(*name, body=body, time=recorded.time, message_id=recorded.message_id, until=now + patience, on=on)
