"""Who led and since when, recorded for whoever asks why an instant was missed: rare facts, never one a renewal.

They are inputs without a guard, since nobody decides on them. What cannot be stored now is stored with the next one.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from .. import telemetry
from ..domain.events import LeadershipFact, LeadershipGained, LeadershipLost, LeadershipReleased
from ..ports import Clock, EventLog, LogUnavailable
from ..subjects import DecodeError, filter_for, subject_of

RECORDED: Final = (LeadershipGained, LeadershipReleased, LeadershipLost)
"""What it stores."""
TICKER_SIGNS: Final = (filter_for("ledger.due"), filter_for("ledger.passed"))
"""Filters over what only a leading ticker stores."""
_PENDING: Final = 100

_log = telemetry.get_logger("tocsin.leadership")


class LeadershipEvents:
    """Records the terms of one holder of one lease."""

    def __init__(self, log: EventLog, clock: Clock, *, lease: str, holder: str, signs: Sequence[str] = ()) -> None:
        """`signs`: filters over facts that only a leader stores."""
        self._log = log
        self._clock = clock
        self._lease = lease
        self._holder = holder
        self._signs = signs
        self._pending: deque[LeadershipFact] = deque(maxlen=_PENDING)
        self._number = 0

    async def gained(self) -> None:
        """From now on the holder leads."""
        fact = LeadershipGained(lease=self._lease, holder=self._holder, at=self._clock.now())
        self._pending.append(fact.model_copy(update={"last_sign": await self._last_sign()}))
        await self.store()

    async def released(self) -> None:
        """The holder gave the lease back."""
        self._pending.append(LeadershipReleased(lease=self._lease, holder=self._holder, at=self._clock.now()))
        await self.store()

    async def lost(self, last_sign: datetime) -> None:
        """The holder does not lead any more, and last knew at `last_sign` (UTC) that it did."""
        at = self._clock.now()
        self._pending.append(LeadershipLost(lease=self._lease, holder=self._holder, at=at, last_sign=last_sign))
        await self.store()

    async def store(self) -> None:
        """Store what is not stored yet, in order."""
        while self._pending:
            fact = self._pending[0]
            message_id = f"{self._lease}-{self._holder}-{self._number}"
            try:
                await self._log.publish(subject_of(fact), fact, message_id=message_id)
            except LogUnavailable as error:
                _log.warning("not recorded", action="leadership-not-recorded", lease=self._lease, error=str(error))
                return
            self._number += 1
            self._pending.popleft()

    async def _last_sign(self) -> datetime | None:
        times = []
        for sign in self._signs:
            with suppress(LogUnavailable, DecodeError):
                if (found := await self._log.last(sign)) is not None:
                    times.append(found.time)
        return max(times, default=None)
